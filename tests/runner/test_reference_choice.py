"""References besides the baseline: the safe arm, harmless arms, another result, thresholds of the user's."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from isomatrix.matrix.plan import Plan
from isomatrix.runner.errors import UserError
from isomatrix.runner.store import ResultFolder

Compose = Callable[..., Plan]
Command = Callable[..., subprocess.CompletedProcess[str]]
QUICK = (
    "probe=text",
    "settings.n_threads=1",
    "settings.n_threads_batch=1",
    "settings.max_tokens=8",
    "stop=fixed",
    "axes=none",
    "run.results=results",
)


def test_a_safe_arm_is_added_when_it_is_asked_for(composed_plan: Compose) -> None:
    plan = composed_plan("probe=audio", "settings.n_threads=2,1", "reference.arm=safe")
    settings = plan.arm("safe").configuration["settings"]
    wanted = {
        "n_gpu_layers": 0,
        "op_offload": False,
        "offload_kqv": False,
        "projector_device": "cpu",
        "n_threads": 1,
        "n_threads_batch": 1,
    }
    assert {name: settings[name] for name in wanted} == wanted
    assert plan.reference["arm"] == "safe"
    assert "safe" not in [arm.name for arm in composed_plan("probe=audio", "settings.n_threads=2,1").arms]


def test_the_safe_arm_of_a_text_probe_has_no_projector(composed_plan: Compose) -> None:
    settings = composed_plan("probe=text", "settings.n_threads=2", "reference.arm=safe").arm("safe").configuration
    assert settings["settings"]["projector_device"] is None


def test_a_safe_arm_of_the_user_s_own_is_kept(composed_plan: Compose) -> None:
    plan = composed_plan("probe=text", "axes=none", "arms.safe={n_threads: 1, n_ubatch: 8}", "reference.arm=safe")
    assert plan.arm("safe").configuration["settings"]["n_ubatch"] == 8
    assert plan.arm("safe").configuration["settings"]["op_offload"] is None


def test_a_safe_arm_that_is_the_baseline_again_makes_the_baseline_the_reference(composed_plan: Compose) -> None:
    safe = ("n_gpu_layers=0", "op_offload=false", "offload_kqv=false", "n_threads=1", "n_threads_batch=1")
    plan = composed_plan("probe=text", "axes=none", "reference.arm=safe", *(f"settings.{word}" for word in safe))
    assert plan.reference["arm"] == "baseline"


def test_the_safe_arm_leaves_out_what_the_build_lacks(composed_plan: Compose, tmp_path: Path) -> None:
    package = tmp_path / "llama_cpp"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "0.3.7"\n')
    fields = ("n_gpu_layers", "offload_kqv", "n_threads", "n_threads_batch")
    (package / "llama_cpp.py").write_text("".join(f'        ("{name}", ctypes.c_int32),\n' for name in fields))
    words = ("probe=text", "axes=none", "reference.arm=safe", f"settings.env.PYTHONPATH={tmp_path}")
    settings = composed_plan(*words).arm("safe").configuration["settings"]
    assert settings["op_offload"] is None
    assert {name: settings[name] for name in fields} == {
        "n_gpu_layers": 0,
        "offload_kqv": False,
        "n_threads": 1,
        "n_threads_batch": 1,
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("reference.harmless=[nobody]",), "no arm 'nobody' in this plan"),
        (("reference.max_mb=-1",), "reference.max_mb: -1.0 is below 0"),
        (("thresholds.wrong_nsme=1",), "unknown threshold 'wrong_nsme'. Did you mean 'wrong_nmse'"),
        (("thresholds.wrong_nmse=-1",), "thresholds.wrong_nmse: -1 is not a number of at least 0"),
        (("reference.result=nowhere",), "no result at nowhere"),
        (("reference.result=nowhere", "reference.ids=[1]"), "either ids or a result, not both"),
    ],
)
def test_a_reference_that_makes_no_sense_is_refused_by_name(
    composed_plan: Compose, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        composed_plan("probe=text", *words)


def test_thresholds_and_harmless_arms_are_in_the_plan_and_no_other_experiment(composed_plan: Compose) -> None:
    words = ("probe=text", "settings.n_ubatch=512,31")
    plan = composed_plan(*words, "thresholds.wrong_nmse=0.5")
    assert plan.thresholds == {"wrong_nmse": 0.5}
    assert Plan.from_json(plan.as_json()).thresholds == {"wrong_nmse": 0.5}
    assert plan.differences(composed_plan(*words)) == []
    for word in ("[n_ubatch=31]", "n_ubatch=31", "['n_ubatch=31']"):
        harmless = composed_plan(*words, f"reference.harmless={word}")
        assert harmless.reference["harmless"] == ["n_ubatch=31"]
        assert harmless.differences(plan) == []


@pytest.mark.slow
def test_a_run_records_resumes_replays_and_serves_as_the_reference_of_another(
    isomatrix: Command, tmp_path: Path
) -> None:
    first = (*QUICK, "run.name=first", "settings.type_k=null,q8_0")
    ran = isomatrix("run", *first, "stop.rounds=2")
    assert ran.returncode == 0, ran.stderr
    assert "reference logits: two recordings of arm 'baseline' that agree bit for bit" in ran.stderr
    assert "Teacher-forced pass: 4 of 4 judged trials." in ran.stdout
    folder = ResultFolder.open(tmp_path / "results" / "first")
    written = folder.reference_file.stat().st_mtime_ns

    resumed = isomatrix("run", *first, "stop.rounds=3")
    assert resumed.returncode == 0, resumed.stderr
    assert "recording" not in resumed.stderr
    assert "Teacher-forced pass: 6 of 6 judged trials." in resumed.stdout
    assert folder.reference_file.stat().st_mtime_ns == written
    rows = folder.read_trials().to_pylist()
    assert len(rows) == 6
    assert {row["noise_nmse"] == 0 for row in rows if row["arm"] == "baseline"} == {True}
    assert all(0 < row["noise_nmse"] < 0.01 for row in rows if row["arm"] != "baseline")

    replayed = isomatrix("replay", "results/first", rows[0]["trial_id"])
    assert replayed.returncode == 0, replayed.stdout

    judged = isomatrix("judge", "results/first", "--set", "wrong_nmse=1e-9")
    assert "3/3" in judged.stdout
    calibrated = isomatrix("judge", "results/first", "--harmless", "type_k=q8_0")
    assert "Limits from the measured noise of type_k=q8_0: NMSE " in calibrated.stdout.replace("\\", "")
    assert "--harmless: no arm 'nobody'" in isomatrix("judge", "results/first", "--harmless", "nobody").stderr

    second = (*QUICK, "run.name=second", "stop.rounds=1", "settings.n_ubatch=8", "reference.result=results/first")
    ran = isomatrix("run", *second)
    assert ran.returncode == 0, ran.stderr
    assert "stored result 'first': consensus of arm 'baseline'" in ran.stdout
    assert "Teacher-forced pass: 1 of 1 judged trials." in ran.stdout
    assert "recording" not in ran.stderr
    moved = tmp_path / "elsewhere"
    (tmp_path / "results" / "second").rename(moved)
    (tmp_path / "results" / "first").rename(tmp_path / "first")
    assert "stored result 'first': consensus" in isomatrix("show", str(moved)).stdout
    assert pq.read_metadata(moved / "reference" / "logits.parquet").num_rows == 8

    other = isomatrix("run", *QUICK, "probe.prompt=Something else", f"reference.result={tmp_path / 'first'}")
    assert other.returncode == 2
    assert "reference.result: first asked something else (probe.prompt is " in other.stderr
