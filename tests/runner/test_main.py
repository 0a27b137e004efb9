"""The installed command, end to end on the embedded model."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from isomatrix.matrix.plan import Plan
from isomatrix.runner.tiny_models import tiny_model
from isomatrix.runner.tiny_weights import TINY_PROJECTOR, write_projector

ISOMATRIX = Path(sys.executable).parent / "isomatrix"

Run = Callable[..., subprocess.CompletedProcess[str]]

TEXT = ("probe=text", "settings.n_threads=1,2", "settings.n_threads_batch=1", "settings.max_tokens=6", "run.name=one")
FIXED = (*TEXT, "stop=fixed", "stop.rounds=2")


def rows(folder: Path) -> list[dict[str, object]]:
    return pq.read_table(folder / "results" / "one" / "trials.parquet").to_pylist()


def test_a_run_leaves_every_trial_and_the_counts_and_prints_the_table(isomatrix: Run, tmp_path: Path):
    done = isomatrix("run", *FIXED)
    assert done.returncode == 0, done.stderr
    assert "| baseline | 0/2 |" in done.stdout
    assert "round 2/2: 4 trials, 0 corrupt, 0 failed" in done.stderr
    trials = rows(tmp_path)
    assert [(row["outcome"], row["verdict"], row["n_generated"]) for row in trials] == [("ok", "identical", 6)] * 4
    arms = pq.read_table(tmp_path / "results" / "one" / "arms.parquet").to_pylist()
    assert [(arm["arm"], arm["n"], arm["n_corrupt"], arm["rate"]) for arm in arms] == [
        ("baseline", 2, 0, 0.0),
        ("n_threads=2", 2, 0, 0.0),
    ]
    assert list((tmp_path / "results" / "one" / "parts").glob("*.parquet")) == []


def test_the_same_command_again_runs_nothing_and_more_rounds_run_only_the_new_ones(isomatrix: Run, tmp_path: Path):
    isomatrix("run", *FIXED)
    before = {row["trial_id"]: row["started_at"] for row in rows(tmp_path)}
    isomatrix("run", *FIXED)
    assert {row["trial_id"]: row["started_at"] for row in rows(tmp_path)} == before
    done = isomatrix("run", *FIXED[:-1], "stop.rounds=3")
    assert done.returncode == 0, done.stderr
    after = {row["trial_id"]: row["started_at"] for row in rows(tmp_path)}
    assert len(after) == 6
    assert {trial: after[trial] for trial in before} == before


def test_a_damaged_part_is_named_set_aside_and_its_trial_is_run_again(isomatrix: Run, tmp_path: Path):
    isomatrix("run", *FIXED)
    folder = tmp_path / "results" / "one"
    for file in ("trials.parquet", "arms.parquet"):  # as a run leaves it that was killed before it summed up
        (folder / file).unlink()
    bad = folder / "parts" / f"{Plan.from_json((folder / 'plan.json').read_text()).round_trials(0)[0].trial_id}.parquet"
    bad.write_bytes(b"PAR1 cut short")
    done = isomatrix("run", *FIXED)
    assert done.returncode == 0, done.stderr
    assert f"{bad.parent.name}/damaged/{bad.name} cannot be read, so its trial is run again" in done.stderr
    assert (folder / "parts" / "damaged" / bad.name).exists()
    assert len(rows(tmp_path)) == 4


def test_another_experiment_under_the_same_name_is_refused_and_the_first_is_kept(isomatrix: Run, tmp_path: Path):
    isomatrix("run", *FIXED)
    done = isomatrix("run", *FIXED, "settings.seed=9")
    assert done.returncode == 2
    assert "holds another experiment (arm 'baseline': settings.seed differs" in done.stderr
    assert len(rows(tmp_path)) == 4


def test_show_report_and_replay_read_what_run_stored(isomatrix: Run, tmp_path: Path):
    isomatrix("run", *FIXED)
    assert "| baseline | 0/2 |" in isomatrix("show").stdout
    assert isomatrix("report", "one").stdout.startswith("### one: tiny")
    table = list(csv.DictReader(io.StringIO(isomatrix("report", "one", "--format", "csv").stdout)))
    assert [(line["arm"], line["n"], line["n_corrupt"]) for line in table] == [
        ("baseline", "2", "0"),
        ("n_threads=2", "2", "0"),
    ]
    file = tmp_path / "out.json"
    assert isomatrix("report", "one", "--format", "json", "-o", str(file)).returncode == 0
    assert json.loads(file.read_text())["arms"][1]["changes"] == "n_threads=2"
    again = isomatrix("replay", "one", "r0001-baseline")
    assert (again.returncode, "the same answer, bit for bit" in again.stdout) == (0, True), again.stderr
    assert isomatrix("replay", "one", "r0001").returncode == 2
    assert "no trial 'nowhere'" in isomatrix("replay", "one", "nowhere").stderr


def test_plan_prints_arms_and_runs_nothing(isomatrix: Run, tmp_path: Path):
    done = isomatrix("plan", *FIXED)
    assert done.returncode == 0, done.stderr
    assert "n_threads=2\tn_threads=2\tbaseline" in done.stdout
    assert "2 arms x 2 rounds = 4 trials" in done.stdout
    assert not (tmp_path / "results").exists()


def test_ctrl_c_keeps_the_finished_trials_prints_the_table_and_can_be_resumed(tmp_path: Path):
    command = [str(ISOMATRIX), "run", *TEXT, "stop=fixed", "stop.rounds=40"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    parts = tmp_path / "results" / "one" / "parts"
    deadline = time.monotonic() + 60
    while len(list(parts.glob("r*.parquet"))) < 3:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "| baseline |" in out
    assert "resume with" in err
    kept = rows(tmp_path)
    assert 3 <= len(kept) < 80
    assert all(row["outcome"] == "ok" for row in kept)


def gguf_cut_short(folder: Path) -> Path:
    cut = folder / "cut.gguf"
    whole = tiny_model("tiny").read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    return cut


def test_a_truncated_model_ends_the_run_in_one_sentence(isomatrix: Run, tmp_path: Path):
    done = isomatrix("run", *FIXED, f"model.path={gguf_cut_short(tmp_path)}")
    assert done.returncode == 3
    assert "isomatrix: the baseline cannot be loaded: " in done.stderr
    assert "corrupted or incomplete" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_prompt_longer_than_the_context_names_the_field(isomatrix: Run):
    done = isomatrix("run", *FIXED, "settings.n_ctx=64", f"probe.prompt='{'word ' * 400}'")
    assert done.returncode == 2
    assert "probe.prompt" in done.stderr
    assert "n_ctx" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_projector_of_another_width_ends_the_run_in_one_sentence(isomatrix: Run, tmp_path: Path):
    other = tmp_path / "wide.gguf"
    write_projector(other, dataclasses.replace(TINY_PROJECTOR, n_embd_text=TINY_PROJECTOR.n_embd_text * 2), "wide")
    done = isomatrix("run", "axes=none", f"model.mmproj={other}", "stop=fixed", "stop.rounds=1", "run.name=one")
    assert done.returncode == 3
    assert "mismatch" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("run", "model.path=nowhere.gguf"), "model.path: no file at"),
        (("run", "settings.n_gpu_layer=3"), "unknown setting 'settings.n_gpu_layer'. Did you mean 'n_gpu_layers'?"),
        (("run", "settings.n_ctx=many"), "settings.n_ctx=many"),
        (("run", "settings.n_ubatch=1,2", "probe.promt=x"), "unknown word 'probe.promt'. Did you mean 'prompt'?"),
        (("run", "settings.n_ubatch=1,2", "frobnicate=3"), "frobnicate"),
        (("run", "settings.n_ubatch=1,1"), "axis n_ubatch: level 1 is listed twice"),
        (("run", "probe=text", "run.name=a/b"), "run.name: 'a/b' is no plain folder name"),
        (("run", "probe=text", "model.path="), "model.path: the value is empty"),
        (("run", "run.results=/proc/nowhere"), "/proc/nowhere"),
        (("run", "model=nope"), "Could not find 'model/nope'"),
        (("show",), "no result below"),
        (("show", "nowhere"), "no result at nowhere"),
        (("assess", "nowhere.csv"), "counts: no file at"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_value_2(isomatrix: Run, words: tuple[str, ...], sentence: str):
    done = isomatrix(*words)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("isomatrix: ")
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_wav_that_the_projector_cannot_read_is_the_users_mistake(isomatrix: Run, tmp_path: Path):
    sound = tmp_path / "speech.wav"  # a header that promises samples and a format that nobody has
    body = (
        struct.pack("<4sIHHIIHH", b"fmt ", 16, 0x7777, 1, 16000, 32000, 2, 16)
        + struct.pack("<4sI", b"data", 4)
        + bytes(4)
    )
    sound.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body)
    done = isomatrix("run", f"probe.audio={sound}", "axes=none", "run.name=one")
    assert done.returncode == 2
    assert "speech.wav" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_table_in_which_no_trial_counts_says_why_and_has_its_exit_value(isomatrix: Run):
    done = isomatrix("run", *FIXED[:-1], "stop.rounds=1")
    assert done.returncode == 3
    assert "isomatrix: no trial counts: no reference: arm 'baseline' has 1 ok trial" in done.stderr


def test_load_beside_the_trials_is_measured_and_stored(isomatrix: Run, tmp_path: Path):
    words = ("probe=text", "settings.n_threads=1", "load=none,cpu", "load.processes=1", "run.name=one")
    done = isomatrix("run", *words, "stop=fixed", "stop.rounds=2")
    assert done.returncode == 0, done.stderr
    shares = {arm: [] for arm in ("baseline", "load=cpu")}
    for row in rows(tmp_path):
        shares[row["arm"]].append(row["load_cpu_share"])
        assert 0 < row["system_cpu_share"] <= 1
    assert shares["baseline"] == [None, None]
    assert all(0.05 < share < 1.1 for share in shares["load=cpu"])


def test_judge_keeps_its_limits_for_show_and_report(isomatrix: Run):
    isomatrix("run", *FIXED)
    judged = isomatrix("judge", "one", "--set", "wrong_nmse=0.5")
    assert judged.returncode == 0, judged.stderr
    assert "Judged with limits of the user's: wrong\\_nmse 0.5." in judged.stdout
    assert isomatrix("show", "one").stdout == judged.stdout
    assert "Did you mean 'wrong_nmse'?" in isomatrix("judge", "one", "--set", "wrong_nms=1").stderr


@pytest.mark.parametrize(
    ("file", "damage", "code", "sentence"),
    [
        ("plan.json", '{"a":', 2, "plan.json: not a plan"),
        ("provenance.json", '{"a":', 0, ""),
        ("trials.parquet", None, 2, "trials.parquet is gone, though arms.parquet has counts"),
    ],
)
def test_a_damaged_result_is_told_in_one_sentence(
    isomatrix: Run, tmp_path: Path, file: str, damage: str | None, code: int, sentence: str
):
    isomatrix("run", *FIXED)
    path = tmp_path / "results" / "one" / file
    path.unlink() if damage is None else path.write_text(damage)
    for words in (("show", "one"), ("run", *FIXED)):
        done = isomatrix(*words)
        assert done.returncode == code, done.stderr
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr


def test_ids_that_fit_no_trial_are_questioned_before_anything_is_claimed(isomatrix: Run):
    done = isomatrix("run", *FIXED, "reference.ids=[999999999]")
    assert done.stdout.splitlines()[2].startswith("Every trial differs from the given ids at the first token")


def test_a_run_leaves_nothing_but_its_result(isomatrix: Run, tmp_path: Path):
    isomatrix("run", *FIXED, f"run.results={tmp_path / 'else'}")
    assert [entry.name for entry in tmp_path.iterdir()] == ["else"]
