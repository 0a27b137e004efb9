"""Real worker processes that misbehave, and the row that each must give."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import isomatrix.runner
import psutil
import pytest
from isomatrix.matrix.outcome import Outcome
from isomatrix.matrix.schema import trials_schema
from isomatrix.matrix.settings import Settings
from isomatrix.runner.ending import EndReason, ExitStatus, Facts, conclude
from isomatrix.runner.load import LoadSpec
from isomatrix.runner.messages import LineReader, OversizedLine
from isomatrix.runner.output import BoundedOutput, telling_line
from isomatrix.runner.process import ChildProcess, ExitWatch
from isomatrix.runner.store import ResultFolder
from isomatrix.runner.tiny_models import tiny_model
from isomatrix.runner.trial import BadInput, Limits, TrialRequest, run_trial, trial_environment

FAULTS = Path(__file__).parent / "fault_workers" / "faults.py"
MARK = "ISOMATRIX_TEST_MARK"


def request(fault: str, mark: str = "", load: LoadSpec | None = None, **limits: Any) -> TrialRequest:
    return TrialRequest(
        trial_id=f"r0000-{fault}",
        command=(sys.executable, "-I", "-S", str(FAULTS)),
        spec={"fault": fault, "settings": {"n_ctx": 1, "env": {}}},
        environment={MARK: mark or None},
        limits=Limits(**{"wall_s": 60.0, **limits}),
        load=load or LoadSpec(),
    )


def marked(mark: str) -> list[int]:
    """Living processes that inherited the mark."""
    return [process.pid for process in psutil.process_iter() if has_mark(process, mark)]


def has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def wait_until_gone(mark: str, timeout_s: float = 5.0) -> list[int]:
    deadline = time.monotonic() + timeout_s
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


@pytest.fixture
def mark() -> Iterator[str]:
    """Marks the processes of one test, which must all be gone at its end."""
    value = uuid.uuid4().hex
    yield value
    assert wait_until_gone(value) == []


ENDINGS = [
    # fault, limits, outcome, end_reason, exit_code, signal, pattern of the error
    (
        "segmentation_fault",
        {},
        "crash",
        None,
        None,
        signal.SIGSEGV,
        r"SIGSEGV.*generate.* 2 tokens.*before the fault",
    ),
    ("abort", {}, "crash", None, None, signal.SIGABRT, r"SIGABRT.*GGML_ASSERT\(ne00 == ne10\) failed"),
    ("bus_error", {}, "crash", None, None, signal.SIGBUS, "SIGBUS"),
    ("kill_itself", {}, "crash", None, None, signal.SIGKILL, "SIGKILL"),
    ("crash_after_answer", {}, "crash", None, None, signal.SIGABRT, "last stage done"),
    ("no_result", {}, "no_result", None, 0, None, "without a complete answer.*gave up quietly"),
    ("exit_seven", {}, "no_result", None, 7, None, "exit value 7 without a complete answer"),
    ("exit_seven_after_answer", {}, "no_result", None, 7, None, "exit value 7 after a complete answer"),
    ("half_a_message", {}, "no_result", None, 0, None, "ends within a line"),
    ("not_json", {}, "no_result", None, 0, None, "line 2 of the answer breaks the protocol"),
    ("wrong_type", {}, "no_result", None, 0, None, "breaks the protocol"),
    ("missing_request", {}, "no_result", None, 0, None, "done after 2 requests, of which 0 came"),
    ("load_failure", {}, "load_failure", None, 4, None, "load_failure happened"),
    ("refused", {}, "refused", None, 3, None, "refused happened"),
    ("backend_error", {}, "backend_error", None, 5, None, "backend_error happened"),
    ("out_of_memory", {}, "out_of_memory", None, 6, None, "out_of_memory happened"),
    (
        "endless_loop",
        {"wall_s": 0.5},
        "timeout",
        "wall_limit",
        None,
        signal.SIGINT,
        "wall time limit of 0.5 s",
    ),
    (
        "progress_then_hang",
        {"stall_s": 0.5},
        "timeout",
        "stall_limit",
        None,
        signal.SIGINT,
        "no event for 0.5 s.* 4 tok",
    ),
    (
        "deaf",
        {"wall_s": 0.5, "grace_s": 0.1},
        "timeout",
        "wall_limit",
        None,
        signal.SIGKILL,
        "prompt.* 1 tokens",
    ),
    (
        "grow",
        {"memory_bytes": 128 << 20},
        "out_of_memory",
        "memory_limit",
        None,
        signal.SIGKILL,
        "134217728 bytes",
    ),
    ("flood_stdout", {}, "no_result", "output_flood", None, signal.SIGINT, "67108864 bytes of output"),
    (
        "flood_stderr",
        {"output_bytes": 4 << 20},
        "no_result",
        "output_flood",
        None,
        signal.SIGINT,
        "bytes of output",
    ),
    (
        "closed_pipe",
        {"closed_pipe_s": 0.2},
        "no_result",
        "closed_pipe",
        None,
        signal.SIGINT,
        "result pipe closed",
    ),
    (
        "load_failure_then_hang",
        {"wall_s": 0.5},
        "load_failure",
        "wall_limit",
        None,
        signal.SIGINT,
        "the file is cut short",
    ),
]


@pytest.mark.parametrize(
    ("fault", "limits", "outcome", "reason", "code", "number", "error"), ENDINGS, ids=[e[0] for e in ENDINGS]
)
def test_every_ending_gives_its_own_row(
    mark: str,
    fault: str,
    limits: dict[str, Any],
    outcome: str,
    reason: Any,
    code: Any,
    number: Any,
    error: str,
) -> None:
    row = run_trial(request(fault, mark, **limits))
    assert (row["outcome"], row["end_reason"], row["exit_code"], row["signal"]) == (
        outcome,
        reason,
        code,
        number,
    ), row
    assert re.search(error, row["error"]), row["error"]
    assert set(row) <= set(trials_schema().names)


def test_a_complete_answer_fills_the_row(mark: str) -> None:
    row = run_trial(request("ok", mark))
    assert row["outcome"] == Outcome.OK.value
    assert (row["exit_code"], row["signal"], row["error"], row["end_reason"]) == (0, None, None, None)
    assert row["token_ids"] == [7, 9]
    assert row["logits_digests"] == [2**64 - 1, 2**63 + 1]
    assert row["requests"][0]["prompt_digest"] == 2**64 - 2
    assert math.isnan(row["requests"][0]["logprobs"][1])
    assert (row["prompt_s"], row["generate_s"], row["load_s"]) == (0.25, 0.5, 0.125)
    assert (row["progress_stage"], row["progress_prompt_tokens"], row["progress_generated"]) == ("done", 3, 2)
    assert json.loads(row["evidence"])["n_ctx"] == 2048
    assert json.loads(row["settings"]) == {"n_ctx": 1, "env": {}}
    assert json.loads(row["spec"])["fault"] == "ok"
    assert 0 < row["start_s"] <= row["wall_s"] < 30
    assert 0 < row["cpu_s"] < 10
    assert row["started_at"].tzinfo is not None
    assert row["stdout_tail"] is None
    assert 0 <= row["system_cpu_share"] <= 1


def real_request(prompt: str, mark: str) -> TrialRequest:
    settings = {**Settings().as_mapping(), "n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "max_tokens": 8}
    probe = {"kind": "text", "prompt": prompt, "media": None, "requests": 2, "top_k_recorded": 3}
    spec = {
        "spec_version": 1,
        "trial_id": "r0000-real",
        "model": {"path": str(tiny_model("tiny")), "mmproj": None},
        "settings": {**settings, "process": "persistent"},
        "probe": {**probe, "add_special": True, "ignore_eos": True},
        "limits": {},
    }
    worker = Path(isomatrix.runner.__file__).parent / "worker"
    return TrialRequest("r0000-real", (sys.executable, str(worker)), spec, {MARK: mark})


def test_the_real_worker_gives_a_row_that_the_store_takes(mark: str, tmp_path: Path) -> None:
    row = run_trial(real_request("Once upon a time", mark))
    assert (row["outcome"], row["n_requests"], row["progress_stage"]) == ("ok", 2, "done"), row["error"]
    assert row["library"]
    assert "n_ctx" in json.loads(row["applied"])
    assert row["native_log"]
    folder = ResultFolder.create(tmp_path / "result")
    folder.write_part({**row, "round": 0, "position": 0})
    [back] = folder.read_trials().to_pylist()
    assert {name: back[name] for name in row if name != "requests"} == {
        name: value for name, value in row.items() if name != "requests"
    }
    assert [r["logits_digests"] for r in back["requests"]] == [r["logits_digests"] for r in row["requests"]]
    assert back["requests"][0]["logits_digests"] == back["requests"][1]["logits_digests"]
    assert [r["logprobs"] for r in back["requests"]] == [
        pytest.approx(r["logprobs"], rel=1e-7) for r in row["requests"]
    ]


def test_the_real_worker_names_bad_input(mark: str) -> None:
    with pytest.raises(BadInput, match=r"probe\.prompt"):
        run_trial(real_request("word " * 2000, mark))


def test_peak_memory_is_the_workers_own_and_not_the_runners(mark: str) -> None:
    # On Linux the OS counts the image before exec, here this process with 300 MB, into the value at reaping.
    ballast = bytearray(os.urandom(1 << 20)) * 300
    row = run_trial(request("progress_then_hang", mark, stall_s=0.3))
    assert 4 << 20 < row["peak_rss_bytes"] < 100 << 20, len(ballast)


def test_peak_memory_reaches_what_the_worker_used(mark: str) -> None:
    row = run_trial(request("grow", mark, memory_bytes=256 << 20))
    if row["peak_rss_bytes"] is not None:  # this process may have had more before, and then it cannot be told
        assert row["peak_rss_bytes"] > 5 << 20


def test_the_log_keeps_both_ends_and_says_how_much_was_cut(mark: str) -> None:
    row = run_trial(request("long_log", mark, log_bytes=2000))
    log = row["native_log"]
    assert row["outcome"] == "ok"
    assert log.startswith("the first line\nline 0\n")
    assert log.endswith("line 19999\nthe last line\n")
    assert re.search(r"\[\d+ bytes cut\]", log)
    assert len(log) < 2100


def test_a_flood_leaves_a_bounded_row(mark: str) -> None:
    before = psutil.Process().memory_info().rss
    row = run_trial(request("flood_stderr", mark))
    assert row["end_reason"] == "output_flood"
    assert row["native_log"].startswith("the first line\n")
    assert len(row["native_log"]) < 257 * 1024
    assert psutil.Process().memory_info().rss - before < 32 << 20


def test_stdout_is_kept_where_the_worker_wrongly_used_it(mark: str) -> None:
    row = run_trial(request("print_to_stdout", mark))
    assert (row["outcome"], row["stdout_tail"]) == ("ok", "not for here")


@pytest.mark.parametrize("fault", ["orphan", "runaway_orphan"])
def test_grandchildren_do_not_outlive_the_trial(mark: str, fault: str) -> None:
    start = time.monotonic()
    row = run_trial(request(fault, mark))
    assert row["outcome"] == "ok"
    assert time.monotonic() - start < 20  # the orphan holds the pipes open for 60 s


def test_bad_input_stops_the_run_with_the_workers_sentence(mark: str) -> None:
    with pytest.raises(BadInput, match=r"^settings\.x: bad_input happened$"):
        run_trial(request("bad_input", mark))


def test_an_interpreter_that_is_not_there_is_bad_input() -> None:
    missing = TrialRequest("t", ("/no/such/python", "worker"), {})
    with pytest.raises(BadInput, match="/no/such/python cannot be started: No such file"):
        run_trial(missing)


def test_cancelling_ends_the_trial_in_flight(mark: str) -> None:
    cancel = threading.Event()
    row = run_trial(request("hang", mark), cancel=cancel, on_event=lambda event: cancel.set())
    assert (row["outcome"], row["end_reason"]) == (Outcome.INTERRUPTED.value, "cancelled")
    assert row["wall_s"] < 20


def test_the_first_reason_stands(mark: str) -> None:
    cancel = threading.Event()
    threading.Timer(0.6, cancel.set).start()  # while the deaf worker is being ended for its wall time
    row = run_trial(request("deaf", mark, wall_s=0.4, grace_s=0.4), cancel=cancel)
    assert (row["outcome"], row["end_reason"]) == ("timeout", "wall_limit")


def test_an_exception_of_the_caller_leaves_no_process(mark: str) -> None:
    def fail(event: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trial(request("hang", mark), on_event=fail)


def test_events_are_handed_on_as_they_come(mark: str) -> None:
    seen: list[str] = []
    run_trial(request("ok", mark), on_event=lambda event: seen.append(event["event"]))
    assert seen == ["started", "library", "loaded", "progress", "progress", "request", "done"]


def test_a_worker_runs_in_a_fresh_folder_and_its_own_session(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOMATRIX_TEST_GONE", "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    asked = request("show_surroundings", mark)
    asked = TrialRequest(
        asked.trial_id,
        asked.command,
        asked.spec,
        {**asked.environment, "ISOMATRIX_TEST_GONE": None, "GGML_NO_BACKTRACE": "0"},
    )
    about = json.loads(run_trial(asked)["text"])
    environment = about["env"]
    assert about["session_leader"]
    assert Path(environment["TMPDIR"]).resolve() == Path(about["cwd"]).resolve()
    assert not Path(about["cwd"]).exists()
    assert environment["GGML_NO_BACKTRACE"] == "0"
    assert "ISOMATRIX_TEST_GONE" not in environment
    assert "PYTHONDONTWRITEBYTECODE" not in environment
    assert len(about["fds"]) == 5  # three standard streams, the result pipe, and the listing itself


def test_the_default_environment_switches_off_the_debugger_and_the_users_site(tmp_path: Path) -> None:
    environment = trial_environment({}, tmp_path)
    assert (environment["GGML_NO_BACKTRACE"], environment["PYTHONNOUSERSITE"]) == ("1", "1")


def test_a_hundred_trials_leak_neither_descriptors_nor_processes(mark: str) -> None:
    expected = {"ok": "ok", "half": "no_result", "abort": "crash", "orphan": "ok", "refused": "refused"}

    def run(ending: str) -> str:
        command = ("/bin/sh", str(FAULTS.with_name("quick.sh")), ending)
        return str(run_trial(TrialRequest("t", command, {}, {MARK: mark}))["outcome"])

    run("ok")
    descriptors, threads = psutil.Process().num_fds(), threading.active_count()
    for _ in range(20):
        assert {ending: run(ending) for ending in expected} == expected
    assert psutil.Process().num_fds() == descriptors
    assert threading.active_count() == threads
    assert psutil.Process().children() == []


RUNNER = """
import sys
from isomatrix.runner.load import LoadSpec
from isomatrix.runner.store import ResultFolder
from isomatrix.runner.tiny_models import tiny_model
from isomatrix.runner.trial import Limits, TrialRequest, run_trial
sys.stdout.reconfigure(line_buffering=True)
run_trial(
    TrialRequest(
        "t",
        (sys.executable, "-I", "-S", sys.argv[1]),
        {"fault": sys.argv[2]},
        load=LoadSpec("cpu", {"processes": 1}),
    ),
    on_event=lambda event: print(event["event"]),
)
"""


@pytest.mark.parametrize("fault", ["hang", "endless_loop"])
def test_neither_worker_nor_load_outlives_a_killed_runner(mark: str, tmp_path: Path, fault: str) -> None:
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(FAULTS), fault],
        env={**os.environ, MARK: mark, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with runner:
        assert runner.stdout is not None
        assert runner.stdout.readline() == b"started\n"
        assert len(marked(mark)) == 4  # runner, worker, the load's leader and its busy process
        runner.kill()
    assert wait_until_gone(mark) == []


def test_the_load_is_recorded_with_what_it_reached(mark: str) -> None:
    row = run_trial(request("hang", mark, LoadSpec("cpu", {"processes": 1}), wall_s=0.5))
    assert (row["load"], row["load_asked"]) == ("cpu", '{"processes":1}')
    assert 0.02 < row["load_cpu_share"] <= 1.05 / (psutil.cpu_count() or 1)
    assert 0 < row["system_cpu_share"] <= 1


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="macOS has waitid from Python 3.13 on")
def test_an_exit_watch_by_thread_sees_the_end_and_does_not_reap() -> None:
    with ChildProcess([sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]) as child:
        watch = ExitWatch(child.pid, by_thread=True)
        assert not watch.wait(0.1)
        child.close_stdin()
        assert watch.wait(10)
        assert child.reap().status == ExitStatus(exit_code=0, signal=None)
        watch.close()


def test_a_foreign_kill_counts_as_out_of_memory_only_with_the_kernels_word() -> None:
    killed = ExitStatus(None, signal.SIGKILL)
    assert conclude(Facts(status=killed, complete=False)).outcome is Outcome.CRASH
    by_kernel = conclude(Facts(status=killed, complete=False, oom_killed=True))
    assert (by_kernel.outcome, by_kernel.end_reason) == (Outcome.OUT_OF_MEMORY, EndReason.KERNEL_OOM)
    other = conclude(Facts(status=ExitStatus(None, signal.SIGSEGV), complete=False, oom_killed=True))
    assert other.outcome is Outcome.CRASH


def test_a_process_that_survives_sigkill_still_gives_an_outcome() -> None:
    stuck = Facts(
        status=ExitStatus(None, None),
        complete=False,
        reason=EndReason.WALL_LIMIT,
        detail="wall time limit of 5 s",
    )
    assert conclude(stuck).outcome is Outcome.TIMEOUT
    assert "still running after SIGKILL" in (conclude(stuck).error or "")


def test_lines_are_the_same_whatever_pieces_they_arrive_in() -> None:
    data = b'{"a": 1}\n\n{"b": 2}\nhalf'
    for size in range(1, len(data) + 1):
        reader = LineReader()
        lines = [line for i in range(0, len(data), size) for line in reader.feed(data[i : i + size])]
        assert (lines, reader.pending) == ([b'{"a": 1}', b"", b'{"b": 2}'], 4)


def test_a_line_without_end_is_refused_before_it_fills_memory() -> None:
    reader = LineReader(max_bytes=100)
    with pytest.raises(OversizedLine):
        for _ in range(20):
            list(reader.feed(b"x" * 10))


@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
def test_bounded_output_keeps_head_and_tail_of_any_stream(piece: int) -> None:
    data = bytes(ord("a") + i % 26 for i in range(500))
    output = BoundedOutput(10, 20)
    for i in range(0, len(data), piece):
        output.add(data[i : i + piece])
    assert output.total == 500
    assert output.text() == data[:10].decode() + "\n[470 bytes cut]\n" + data[-20:].decode()


def test_bounded_output_that_fits_is_whole() -> None:
    output = BoundedOutput(10, 20)
    output.add(b"0123456789" * 3)
    assert output.text() == "0123456789" * 3


def test_an_assertion_tells_more_than_the_last_line() -> None:
    assert telling_line("x.c:1: GGML_ASSERT(a) failed\nend\n\n") == "x.c:1: GGML_ASSERT(a) failed"
    assert telling_line("one\ntwo\n") == "two"
    assert telling_line("\n") == ""


@pytest.mark.parametrize("limits", [{"wall_s": 0}, {"stall_s": -1}, {"memory_bytes": 0}, {"log_bytes": 0}])
def test_a_limit_must_be_above_zero(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"limits.{next(iter(limits))}"):
        Limits(**limits)
