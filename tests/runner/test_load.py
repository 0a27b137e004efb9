"""Synthetic load: really up, really measured, really gone."""

from __future__ import annotations

import os
import time

import psutil
import pytest
from isomatrix.runner.load import CpuLoad, LoadError, LoadMeter, LoadSpec, make_load, start_load


def alive(pids: tuple[int, ...]) -> list[int]:
    return [p for p in pids if psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE]


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_the_busy_processes_are_running_before_the_block_begins_and_gone_after_it() -> None:
    before = children()
    with start_load(LoadSpec("cpu", {"processes": 3})) as load:
        assert isinstance(load, CpuLoad)
        assert len(alive(load.pids)) == 3
        assert len({os.getpgid(pid) for pid in load.pids}) == 1
        assert os.getpgid(load.pids[0]) != os.getpgrp()
        pids = load.pids
    assert alive(pids) == []
    assert children() == before


def test_a_load_ends_when_the_block_fails() -> None:
    pids: tuple[int, ...] = ()
    with pytest.raises(ZeroDivisionError), start_load(LoadSpec("cpu", {"processes": 1})) as load:
        assert isinstance(load, CpuLoad)
        pids = load.pids
        raise ZeroDivisionError
    assert len(pids) == 1
    assert alive(pids) == []


def test_stopped_processes_of_a_load_end_too() -> None:
    load = CpuLoad(2)
    load.start()
    pids = load.pids
    for pid in pids:
        psutil.Process(pid).suspend()
    load.stop()
    assert alive(pids) == []


def test_the_achieved_share_agrees_with_another_measurement() -> None:
    with start_load(LoadSpec("cpu", {"processes": 2})) as load:
        assert isinstance(load, CpuLoad)
        processes = [psutil.Process(pid) for pid in load.pids]
        ticks = sum(p.cpu_times().user + p.cpu_times().system for p in processes)
        start = time.monotonic()
        meter = LoadMeter(load)
        time.sleep(0.8)
        shares = meter.read()
        elapsed = time.monotonic() - start
        other = sum(p.cpu_times().user + p.cpu_times().system for p in processes) - ticks
    assert shares["load_cpu_share"] is not None
    assert shares["load_cpu_share"] * elapsed * (psutil.cpu_count() or 1) == pytest.approx(other, abs=0.12)
    assert other > 0.2  # busy, whatever else the machine does
    assert shares["system_cpu_share"] is not None
    assert shares["load_cpu_share"] - 0.1 <= shares["system_cpu_share"] <= 1


def test_a_busy_process_that_was_killed_keeps_its_share() -> None:
    with start_load(LoadSpec("cpu", {"processes": 1})) as load:
        assert isinstance(load, CpuLoad)
        time.sleep(0.1)
        before = load.cpu_s()
        psutil.Process(load.pids[0]).kill()
        time.sleep(0.1)
        assert load.cpu_s() >= before > 0


def test_no_load_has_no_share_of_its_own() -> None:
    with start_load(LoadSpec()) as load:
        shares = LoadMeter(load).read()
    assert shares["load_cpu_share"] is None
    assert load.asked_json() == "{}"


def test_by_default_there_is_one_busy_process_per_cpu() -> None:
    assert make_load(LoadSpec("cpu")).asked() == {"processes": psutil.cpu_count()}
    assert make_load(LoadSpec("cpu", {"processes": None})).asked() == {"processes": psutil.cpu_count()}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (LoadSpec("cpus"), r"load: 'cpus' is not one of none, cpu\. Did you mean 'cpu'"),
        (LoadSpec("cpu", {"process": 1}), r"load\.process: .*no such parameter\. Did you mean 'processes'"),
        (LoadSpec("none", {"processes": 1}), r"load\.processes: load 'none' has no such parameter"),
        (LoadSpec("cpu", {"processes": 0}), r"load\.processes: 0 is not"),
        (LoadSpec("cpu", {"processes": "2"}), r"load\.processes: '2' is not"),
        (LoadSpec("cpu", {"processes": True}), r"load\.processes: True is not"),
    ],
)
def test_a_wrong_load_is_named_before_anything_starts(spec: LoadSpec, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        make_load(spec)
