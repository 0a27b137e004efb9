"""What the runner adds to a trial, beside the same worker command in a shell loop and in Hydra's basic sweeper.

    python benchmarks/overhead.py [--trials 100]

All three run the same specs (embedded text model, one generated token) one after another in one session. The
shell loop runs before and after the others, so that a slow drift of the machine shows. A trial's cost is the
time from one start to the next. The mean is over everything between the first start and the end, so it has
Hydra's cost per round in it; the median has not, because most trials do not begin a round.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import isomatrix.runner.round as round_module
import pyarrow.parquet as pq
from isomatrix.matrix.plan import Plan
from isomatrix.runner.round import trial_request

ARMS = 10
WORKER = Path(round_module.__file__).parent / "worker"

HYDRA_APP = """
import subprocess, sys, hydra
@hydra.main(version_base="1.3", config_path=None)
def main(config):
    with open(config.times, "a") as times:
        import time; times.write(f"{time.time()}\\n")
    subprocess.run([sys.executable, config.worker, f"{config.specs}/{config.index}.json", "--result-fd", "1"],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=True)
main()
"""

SHELL_LOOP = """
i=0
while [ "$i" -lt "$TRIALS" ]; do
    date +%s.%N >> "$TIMES"
    "$PYTHON" "$WORKER" "$SPECS/$i.json" --result-fd 1 > /dev/null 2>&1 < /dev/null || exit 1
    i=$((i + 1))
done
date +%s.%N >> "$TIMES"
"""


def main() -> None:
    """Run the three and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100, help=f"a multiple of {ARMS} (default: 100)")
    trials = parser.parse_args().trials // ARMS * ARMS
    with tempfile.TemporaryDirectory() as folder:
        report(measure(Path(folder), trials), trials)


def measure(folder: Path, trials: int) -> dict[str, list[float]]:
    """Start times, s, of every trial and the end, by way of running."""
    plan = make_plan(folder)
    specs = folder / "specs"
    specs.mkdir()
    for index in range(trials):
        arm = plan.arms[index % ARMS]
        (specs / f"{index}.json").write_text(json.dumps(trial_request(arm, f"trial-{index}").spec))
    shell_loop(folder, trials, "warm-up")
    return {
        "shell loop, before": shell_loop(folder, trials, "before"),
        "isomatrix run": isomatrix_run(folder, trials),
        "Hydra basic sweeper": hydra_basic(folder, trials),
        "shell loop, after": shell_loop(folder, trials, "after"),
    }


def arguments(folder: Path, rounds: int) -> list[str]:
    levels = ",".join(str(2000 + index) for index in range(ARMS))  # ten arms that cost the same
    return [
        "probe=text", "probe.teacher_forced=false", f"settings.n_ctx={levels}", "settings.max_tokens=1",
        "settings.n_threads=1",
        "settings.n_threads_batch=1", "stop=fixed", f"stop.rounds={rounds}", f"run.results={folder}", "run.name=bench",
    ]  # fmt: skip


def make_plan(folder: Path) -> Plan:
    """The benchmark's plan, made by the product itself."""
    subprocess.run([isomatrix(), "run", *arguments(folder, 2)], check=True, capture_output=True)
    return Plan.from_json((folder / "bench" / "plan.json").read_text())


def isomatrix() -> str:
    return str(Path(sys.executable).parent / "isomatrix")


def isomatrix_run(folder: Path, trials: int) -> list[float]:
    results = folder / "timed"
    subprocess.run([isomatrix(), "run", *arguments(results, trials // ARMS)], check=True, capture_output=True)
    rows = pq.read_table(results / "bench" / "trials.parquet", columns=["started_at", "wall_s", "outcome"]).to_pylist()
    if [row["outcome"] for row in rows] != ["ok"] * trials:
        raise SystemExit("not every trial was ok; the figures would mean nothing")
    starts = sorted((row["started_at"].timestamp(), row["wall_s"]) for row in rows)
    return [start for start, _ in starts] + [starts[-1][0] + starts[-1][1]]


def shell_loop(folder: Path, trials: int, name: str) -> list[float]:
    times = folder / f"shell-{name}"
    environment = {
        "TRIALS": str(trials), "TIMES": str(times), "PYTHON": sys.executable, "WORKER": str(WORKER),
        "SPECS": str(folder / "specs"), "PATH": "/usr/bin:/bin", "GGML_NO_BACKTRACE": "1",
    }  # fmt: skip
    subprocess.run(["sh", "-c", SHELL_LOOP], check=True, env=environment)
    return [float(line) for line in times.read_text().split()]


def hydra_basic(folder: Path, trials: int) -> list[float]:
    app, times = folder / "app.py", folder / "hydra-times"
    app.write_text(HYDRA_APP)
    words = [f"+times={times}", f"+worker={WORKER}", f"+specs={folder / 'specs'}", f"+index=range({trials})"]
    subprocess.run([sys.executable, str(app), "-m", *words], check=True, cwd=folder, capture_output=True)
    return [float(line) for line in times.read_text().split()] + [time.time()]


def report(times: dict[str, list[float]], trials: int) -> None:
    costs = {name: [1000 * (b - a) for a, b in itertools.pairwise(t)] for name, t in times.items()}
    shell = costs["shell loop, before"] + costs["shell loop, after"]
    print(f"{trials} trials each, ms from one start to the next\n")
    print(f"{'':22}{'median':>9}{'mean':>9}{'added, median':>15}{'added, mean':>13}{'ratio of means':>16}")
    for name, cost in costs.items():
        median, mean = statistics.median(cost), statistics.fmean(cost)
        added = median - statistics.median(shell), mean - statistics.fmean(shell)
        ratio = mean / statistics.fmean(shell)
        print(f"{name:22}{median:9.1f}{mean:9.1f}{added[0]:15.1f}{added[1]:13.1f}{ratio:16.2f}")


if __name__ == "__main__":
    main()
