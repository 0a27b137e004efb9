"""The result folder: exact rows, nothing lost, nothing silently dropped."""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from isomatrix.matrix.schema import SCHEMA_VERSION, arms_schema, trials_schema
from isomatrix.runner.store import DamagedPart, ResultFolder, StoreError, newest_result

REQUEST = {
    "request": 0,
    "n_prompt_tokens": 3,
    "token_ids": [1, 2**31 - 1],
    "logprobs": [-0.5, float("nan")],
    "margins": [1.25, float("inf")],
    "top_ids": [[1, 2], []],
    "top_logits": [[0.1 + 0.2, -0.0], [float("nan")]],
    "logits_digests": [2**64 - 1, 2**63 + 1],
    "prompt_digest": 2**64 - 2,
    "text": "a\ufffd\0b",
}


def row(trial_id: str = "r0000-a", **values: Any) -> dict[str, Any]:
    return {"trial_id": trial_id, "arm": "a", "round": 0, "position": 0, "outcome": "ok", **values}


@pytest.fixture
def folder(tmp_path: Path) -> ResultFolder:
    return ResultFolder.create(tmp_path / "result")


def float32(value: float) -> float:
    import struct

    return float(struct.unpack("f", struct.pack("f", value))[0])


def test_a_row_comes_back_exactly(folder: ResultFolder) -> None:
    moment = datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=timezone(timedelta(hours=5)))
    folder.write_part(
        row(requests=[REQUEST], logits_digests=[2**64 - 1], started_at=moment, wall_s=0.1 + 0.2, corrupt=None)
    )
    table = folder.read_trials()
    assert table.schema.equals(trials_schema(), check_metadata=True)
    [back] = table.to_pylist()
    request = back["requests"][0]
    assert back["logits_digests"] == [2**64 - 1]
    assert (request["logits_digests"], request["prompt_digest"]) == ([2**64 - 1, 2**63 + 1], 2**64 - 2)
    assert request["token_ids"] == [1, 2**31 - 1]
    assert request["logprobs"][0] == -0.5
    assert math.isnan(request["logprobs"][1])
    assert request["margins"] == [1.25, math.inf]
    assert request["top_ids"] == [[1, 2], []]
    assert request["top_logits"][0][0] == float32(0.1 + 0.2)
    assert math.copysign(1, request["top_logits"][0][1]) == -1
    assert math.isnan(request["top_logits"][1][0])
    assert request["text"] == "a\ufffd\0b"
    assert request["projector_digest"] is None
    assert (back["started_at"], back["started_at"].utcoffset()) == (moment, timedelta(0))
    assert back["wall_s"] == 0.1 + 0.2
    assert back["corrupt"] is None
    assert back["schema_version"] == SCHEMA_VERSION


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"verdit": "ok"}, "no column 'verdit'"),
        ({"requests": [{"tokens": []}]}, "no field 'tokens' in a request"),
        ({"exit_code": 2**31}, "column exit_code"),
        ({"logits_digests": [2**64]}, "column logits_digests"),
        ({"logits_digests": [-1]}, "column logits_digests"),
        ({"exit_code": "zero"}, "column exit_code"),
        ({"started_at": datetime(2024, 1, 1)}, "column started_at: .* has no time zone"),
        ({"trial_id": "../escape"}, "cannot name a file"),
        ({"trial_id": None}, "cannot name a file"),
        ({"outcome": "interrupted"}, "interrupted by the user"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_and_leaves_nothing(
    folder: ResultFolder, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(StoreError, match=message):
        folder.write_part({**row(), **values})
    assert list(folder.parts_folder.iterdir()) == []


def test_rows_come_in_the_order_of_the_rounds_whatever_the_order_of_writing(folder: ResultFolder) -> None:
    places = [(r, p) for r in range(3) for p in range(3)]
    for r, p in random.Random(1).sample(places, len(places)):
        folder.write_part(row(f"r{r}-{random.Random(p).random()}", round=r, position=p, native_log=f"{r}{p}"))
    table = folder.read_trials(["native_log", "round"])
    assert table.schema.names == ["native_log", "round"]
    assert table["native_log"].to_pylist() == [f"{r}{p}" for r, p in places]


def test_an_unknown_column_cannot_be_read(folder: ResultFolder) -> None:
    with pytest.raises(StoreError, match="no column 'nope'"):
        folder.read_trials(["nope"])


def test_compacting_keeps_every_row_and_removes_only_covered_parts(folder: ResultFolder) -> None:
    for number in (2, 0, 1):
        folder.write_part(row(f"t{number}", position=number))
    rows = folder.read_trials()
    folder.write_part(row("t3", position=3))  # finished while the others were being judged
    verdict = rows.schema.get_field_index("verdict")
    folder.compact(rows.set_column(verdict, "verdict", pa.array(["identical"] * 3)))
    assert [part.stem for part in folder.parts_folder.glob("*.parquet")] == ["t3"]
    assert pq.read_table(folder.trials_file)["trial_id"].to_pylist() == ["t0", "t1", "t2"]
    assert folder.finished_trials() == {"t0", "t1", "t2", "t3"}
    assert folder.read_trials()["verdict"].to_pylist() == ["identical"] * 3 + [None]
    folder.compact(folder.read_trials())
    assert folder.read_trials().num_rows == 4
    assert list(folder.parts_folder.iterdir()) == []


def test_a_trial_that_lies_in_both_places_counts_once_with_its_verdict(folder: ResultFolder) -> None:
    folder.write_part(row("t0"))
    folder.compact(
        folder.read_trials()
        .drop_columns("verdict")
        .append_column("verdict", pa.array(["drift"]))
        .select(trials_schema().names)
    )
    folder.write_part(row("t0"))  # as after a kill between the two steps of compacting
    table = folder.read_trials()
    assert table["verdict"].to_pylist() == ["drift"]


def test_compacting_refuses_to_lose_a_stored_row(folder: ResultFolder) -> None:
    folder.write_part(row("t0"))
    folder.compact(folder.read_trials())
    folder.write_part(row("t1"))
    rows = folder.read_trials()
    with pytest.raises(StoreError, match="t0"):
        folder.compact(rows.slice(1))
    with pytest.raises(StoreError, match="twice"):
        folder.compact(pa.concat_tables([rows, rows]))
    with pytest.raises(StoreError, match="other columns"):
        folder.compact(rows.drop_columns("verdict"))
    assert folder.finished_trials() == {"t0", "t1"}


def test_the_run_merges_its_parts_when_there_are_many(folder: ResultFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isomatrix.runner.store._MERGE_ABOVE", 9)
    for number in range(10):
        folder.write_part(row(f"t{number:03d}", position=number))
    expected = folder.read_trials()
    assert len(list(folder.parts_folder.iterdir())) == 10  # a reader changes nothing
    with folder.lock():
        assert folder.read_trials().equals(expected)
    assert list(folder.parts_folder.iterdir()) == []
    assert folder.read_trials().equals(expected)


def damage(part: Path, how: str) -> None:
    data = part.read_bytes()
    damaged = {
        "cut short": data[: len(data) // 2],
        "empty": b"",
        "no footer": data[:-20] + b"\0" * 20,
        "flipped data": data[:4] + bytes(byte ^ 0xFF for byte in data[4:400]) + data[400:],
    }
    part.write_bytes(damaged[how])


@pytest.mark.parametrize("how", ["cut short", "empty", "no footer", "flipped data"])
def test_a_damaged_part_is_reported_and_only_a_writer_sets_it_aside(folder: ResultFolder, how: str) -> None:
    folder.write_part(row("good"))
    part = folder.write_part(row("bad", position=1, native_log="x" * 5000))
    damage(part, how)
    reported: list[DamagedPart] = []
    assert folder.read_trials(on_damage=reported.append)["trial_id"].to_pylist() == ["good"]
    assert [damaged.path for damaged in reported] == [part]
    assert part.exists()

    reported.clear()
    with folder.lock(on_damage=reported.append):
        assert folder.read_trials(on_damage=reported.append)["trial_id"].to_pylist() == ["good"]
        assert folder.finished_trials() == {"good"}
    assert [damaged.path for damaged in reported] == [folder.damaged_folder / "bad.parquet"]
    assert reported[0].why
    assert reported[0].path.exists()
    assert not part.exists()


def test_a_part_under_the_name_of_another_trial_is_damaged(folder: ResultFolder) -> None:
    part = folder.write_part(row("t0"))
    part.rename(part.with_stem("t1"))
    reported: list[DamagedPart] = []
    assert folder.read_trials(on_damage=reported.append).num_rows == 0
    assert "t0" in reported[0].why


def test_damage_is_logged_where_nobody_listens(folder: ResultFolder, caplog: pytest.LogCaptureFixture) -> None:
    damage(folder.write_part(row("bad")), "empty")
    folder.read_trials()
    assert "bad.parquet cannot be read and does not count" in caplog.text


def test_a_damaged_table_stops_with_its_name(folder: ResultFolder) -> None:
    folder.trials_file.write_bytes(b"PAR1 nothing")
    with pytest.raises(StoreError, match=r"trials\.parquet cannot be read"):
        folder.read_trials()


def test_columns_that_an_older_version_lacked_are_null(folder: ResultFolder) -> None:
    folder.write_part(row("new"))
    old = folder.read_trials().drop_columns(["requests", "system_cpu_share", "signal"])
    old = old.set_column(old.schema.get_field_index("trial_id"), "trial_id", pa.array(["old"]))
    pq.write_table(old, folder.parts_folder / "old.parquet")
    table = folder.read_trials()
    assert table.schema.names == trials_schema().names
    assert table["trial_id"].to_pylist() == ["new", "old"]
    assert table["requests"].null_count == 2


def test_a_newer_version_is_refused_with_the_fix(folder: ResultFolder) -> None:
    (folder.path / "result.json").write_text('{"format": "isomatrix result", "schema_version": 999}')
    with pytest.raises(StoreError, match=r"schema version 999.*update"):
        ResultFolder.open(folder.path)


@pytest.mark.parametrize("marker", ["", "[]", "{}", '{"format": "other", "schema_version": 1}'])
def test_a_marker_that_says_something_else_is_refused(folder: ResultFolder, marker: str) -> None:
    (folder.path / "result.json").write_text(marker)
    with pytest.raises(StoreError, match=r"result\.json"):
        ResultFolder.open(folder.path)


def test_opening_what_is_no_result_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no result at"):
        ResultFolder.open(tmp_path / "missing")
    with pytest.raises(StoreError, match=r"not a result folder: it has no result\.json"):
        ResultFolder.open(tmp_path)


def test_creating_never_takes_over_another_folder(folder: ResultFolder, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds a result already"):
        ResultFolder.create(folder.path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    with pytest.raises(StoreError, match=r"not empty \(it holds cat\.jpg\)"):
        ResultFolder.create(tmp_path / "photos")
    assert ResultFolder.open_or_create(folder.path).path == folder.path


def test_a_creation_that_was_killed_can_be_repeated(tmp_path: Path) -> None:
    path = tmp_path / "result"
    ResultFolder.create(path)
    (path / "result.json").rename(path / ".result.json.host.1.tmp")
    ResultFolder.create(path)
    ResultFolder.open(path)


def test_a_folder_can_be_moved(folder: ResultFolder, tmp_path: Path) -> None:
    folder.write_part(row("t0"))
    folder.compact(folder.read_trials())
    folder.write_part(row("t1", position=1))
    shutil.move(folder.path, tmp_path / "elsewhere")
    moved = ResultFolder.open(tmp_path / "elsewhere")
    assert moved.read_trials()["trial_id"].to_pylist() == ["t0", "t1"]


def test_small_files_come_back(folder: ResultFolder) -> None:
    folder.write_config("a: 1\n")
    folder.write_plan('{"version": 1}')
    folder.write_provenance("{}")
    folder.write_schedule(3, ["baseline", "op_offload=false"])
    again = ResultFolder.open(folder.path)
    assert (again.read_config(), again.read_plan(), again.read_provenance()) == (
        "a: 1\n",
        '{"version": 1}',
        "{}",
    )
    assert again.read_schedule(3) == ["baseline", "op_offload=false"]
    assert again.read_schedule(4) is None


def test_a_missing_small_file_is_named(folder: ResultFolder) -> None:
    with pytest.raises(StoreError, match=r"has no plan\.json"):
        folder.read_plan()
    with pytest.raises(StoreError, match=r"has no arms\.parquet"):
        folder.read_arms()


def test_arms_are_stored_by_their_schema(folder: ResultFolder) -> None:
    table = pa.Table.from_pylist([{"arm": "baseline", "n": 5, "rate": 0.0}], schema=arms_schema())
    folder.write_arms(table)
    assert folder.read_arms().equals(table)
    with pytest.raises(StoreError, match=r"arms\.parquet"):
        folder.write_arms(table.drop_columns("rate"))


HOLDER = """
import sys, time
from pathlib import Path
from isomatrix.runner.store import ResultFolder
with ResultFolder.open(Path(sys.argv[1])).lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_names_its_holder_and_ends_with_it(folder: ResultFolder) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(folder.path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreError, match=f"in use by process {holder.pid} on .*run.name"), folder.lock():
            pass
        ResultFolder.open(folder.path).read_trials()  # readers need no lock
        folder.write_part(row())  # nor do the jobs of the run that holds it
        holder.kill()
    with folder.lock(), pytest.raises(StoreError, match="in use"), ResultFolder.open(folder.path).lock():
        pass
    with folder.lock():
        pass


WRITER = """
import sys
from pathlib import Path
from isomatrix.runner.store import ResultFolder
folder = ResultFolder.open(Path(sys.argv[1]))
for number in range(int(sys.argv[2]), 10**6):
    row = {"trial_id": f"t{number:06d}", "round": 0, "position": number, "native_log": "x" * 200000}
    folder.write_part(row)
    print(number, flush=True)
    if number % 7 == 0:
        folder.compact(folder.read_trials())
"""


def test_a_kill_at_any_moment_loses_no_stored_row(folder: ResultFolder) -> None:
    written = -1
    for attempt in range(3):
        command = [sys.executable, "-c", WRITER, str(folder.path), str(written + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            first = writer.stdout.readline()
            time.sleep(random.Random(attempt).uniform(0.0, 0.3))
            writer.send_signal(signal.SIGKILL)
            lines = [first, *writer.stdout.read().splitlines(keepends=True)]
        written = max(int(line) for line in lines if line.endswith(b"\n"))
        problems: list[DamagedPart] = []
        with folder.lock(on_damage=problems.append):
            rows = folder.read_trials(["trial_id", "native_log"], on_damage=problems.append)
        ids = [int(text[1:]) for text in rows["trial_id"].to_pylist()]
        assert problems == []
        assert ids in (
            list(range(written + 1)),
            list(range(written + 2)),
        )  # one may be stored and not yet said
        assert set(rows["native_log"].to_pylist()) == {"x" * 200000}
        assert [p for p in folder.path.rglob("*") if p.name.endswith(".tmp")] == []
        written = ids[-1]


FULL_DISK = """
import os, sys
from pathlib import Path
from isomatrix.runner.store import ResultFolder, StoreError
folder = ResultFolder.create(Path(sys.argv[1]) / "result")
stored = 0
try:
    while stored < 1000:
        row = {"trial_id": f"t{stored}", "round": 0, "position": stored}
        folder.write_part({**row, "native_log": os.urandom(50000).hex()})
        stored += 1
except StoreError as error:
    print(error)
assert 0 < stored < 1000
assert folder.read_trials(["trial_id"]).num_rows == stored
assert len(list(folder.parts_folder.iterdir())) == stored
before = folder.finished_trials()
try:
    folder.compact(folder.read_trials())
    print("compacted")
except StoreError as error:
    print(error)
assert folder.finished_trials() == before
assert folder.read_trials(["trial_id"]).num_rows == stored
"""

READ_ONLY = """
import subprocess, sys
from pathlib import Path
from isomatrix.runner.store import ResultFolder, StoreError
root = Path(sys.argv[1])
folder = ResultFolder.create(root / "result")
folder.write_part({"trial_id": "t0", "round": 0, "position": 0})
subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
def refused(action):
    try:
        action()
    except StoreError as error:
        print(error)
    else:
        raise AssertionError("written to a read-only disk")
refused(lambda: folder.write_part({"trial_id": "t1"}))
refused(lambda: ResultFolder.create(root / "other"))
refused(lambda: folder.lock().__enter__())
assert folder.read_trials()["trial_id"].to_pylist() == ["t0"]
"""


def on_small_disk(program: str, place: Path) -> str:
    """Run a program with a 1 MB disk of its own at `place`, without being root."""
    inner = 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" -c "$3" "$1"'
    unshare = shutil.which("unshare")
    probe = [unshare or "unshare", "--user", "--map-root-user", "--mount", "true"]
    if sys.platform != "linux" or unshare is None or subprocess.run(probe, capture_output=True).returncode != 0:
        pytest.skip("needs Linux with user namespaces")
    command = [*probe[:-1], "sh", "-c", inner, "sh", str(place), sys.executable, program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_full_disk_is_a_clear_error_and_loses_nothing(tmp_path: Path) -> None:
    said = on_small_disk(FULL_DISK, tmp_path)
    assert "no space left; free some and run again with the same run.name" in said.splitlines()[0]


def test_a_read_only_disk_is_a_clear_error(tmp_path: Path) -> None:
    said = on_small_disk(READ_ONLY, tmp_path).splitlines()
    assert len(said) == 3
    assert all("not writable; choose another with run.results" in line for line in said)


def test_a_result_below_a_file_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot write .*file"):
        ResultFolder.create(tmp_path / "file" / "result")


def test_the_newest_result_is_the_one_written_to_last(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no result below"):
        newest_result(tmp_path / "results")
    old, new = (ResultFolder.create(tmp_path / name) for name in ("b", "a"))
    for place in (old.path, old.parts_folder, old.schedule_folder):
        os.utime(place, (1, 1))
    assert newest_result(tmp_path).path == new.path
    old.write_part(row())
    os.utime(new.path, (2, 2))
    for place in (new.parts_folder, new.schedule_folder):
        os.utime(place, (2, 2))
    assert newest_result(tmp_path).path == old.path
