"""Error and cost of the sequential stop rule, by seeded simulation.

    python benchmarks/sequential_error.py [--matrices 2000] [--rounds 400] [--seed 20260930]

Three tables in Markdown: family-wise error of "differs" under optional stopping (beside a fixed-size test
that is looked at after every round), error of the two closing claims at the edge of their hypotheses, and the
runs that a real difference needs, beside the fixed design with 80 % power.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from isomatrix.matrix.statistics.power import runs_for_power, thresholds
from isomatrix.matrix.statistics.rule import StopRule
from isomatrix.matrix.statistics.sequential import Kind
from isomatrix.matrix.statistics.simulation import KINDS, run_matrices
from numpy.typing import NDArray
from scipy import stats

ARMS = 10
ALPHA = 0.05
FAULTS = (0.9, 0.5, 0.3, 0.2)

Rates = NDArray[np.float64]
Flags = NDArray[np.bool_]


def outcomes(
    generator: np.random.Generator, matrices: int, arm_rates: Rates, baseline_rates: Rates
) -> tuple[Flags, Flags]:
    """Outcomes of arms (matrices, arms, rounds) and of the baseline (matrices, rounds)."""
    arms = generator.random((matrices, *arm_rates.shape), dtype=np.float32) < arm_rates
    return arms, generator.random((matrices, len(baseline_rates)), dtype=np.float32) < baseline_rates


def constant(rates: list[float], rounds: int) -> Rates:
    """Arm rates that stay as they are, shape (arms, rounds)."""
    return np.repeat(np.array(rates)[:, None], rounds, axis=1)


def ever(result_kind: NDArray[np.int8], kind: Kind, among: slice) -> float:
    """Share of matrices in which any of the arms ended as `kind`."""
    return float(np.mean(np.any(result_kind[:, among] == KINDS.index(kind), axis=1)))


def fixed_test_at_every_look(arms: Flags, baseline: Flags, rounds: int) -> float:
    """Share of matrices in which Boschloo at alpha / arms, looked at after every round, ever rejects."""
    own, other = np.cumsum(arms[:, :, :rounds], axis=2), np.cumsum(baseline[:, :rounds], axis=1)[:, None, :]
    rejected = np.zeros(len(arms), dtype=bool)
    for runs in range(2, rounds + 1):
        region = thresholds(runs, runs, ALPHA / ARMS / 2)
        k, reference = own[:, :, runs - 1], np.broadcast_to(other[:, :, runs - 1], own.shape[:2])
        rejected |= np.any((k >= region[reference]) | (reference >= region[k]), axis=1)
    return float(rejected.mean())


def clopper_pearson_at_every_look(arms: Flags, rounds: int, bound: float) -> float:
    """Share of arms whose one-sided exact bound, looked at after every round, ever lies below `bound`."""
    own = np.cumsum(arms[:, :, :rounds], axis=2)
    below = np.zeros(own.shape[:2], dtype=bool)
    for runs in range(1, rounds + 1):
        largest = int(np.sum(stats.binom.cdf(np.arange(runs + 1), runs, bound) < ALPHA)) - 1
        below |= own[:, :, runs - 1] <= largest
    return float(below.mean())


def family_wise_error(matrices: int, rounds: int, seed: int) -> None:
    """Arms that all have the baseline's rate: any "differs" is an error."""
    print(f'\n### Family-wise error of "differs": {ARMS} arms, {matrices:,} matrices, alpha = {ALPHA}\n')
    print(
        f"| rate of every arm and the baseline | this rule, {rounds} rounds | this rule, default, 40 rounds "
        "| Boschloo / 10 at each of 40 looks |\n| --- | --- | --- | --- |"
    )
    ramp = np.linspace(0.05, 0.6, rounds)
    cases = [(f"{rate:g}", np.full(rounds, rate)) for rate in (0.0, 0.02, 0.3, 0.9)]
    cases.append((f"0.05 rising to 0.6 over {rounds} rounds", ramp))
    for position, (name, rates) in enumerate(cases):
        generator = np.random.default_rng([seed, 1, position])
        arms, baseline = outcomes(generator, matrices, np.tile(rates, (ARMS, 1)), rates)
        only_differs = StopRule(rounds=rounds, clean_bound=None, equivalence_margin=None)
        errors = [
            ever(run_matrices(arms, baseline, rule).kind, Kind.DIFFERS, slice(None))
            for rule in (only_differs, StopRule())
        ]
        naive = fixed_test_at_every_look(arms, baseline, min(rounds, 40))
        print(f"| {name} | {errors[0]:.4f} | {errors[1]:.4f} | {naive:.4f} |")


def closing_error(matrices: int, rounds: int, seed: int) -> None:
    """Arms at the edge of the closing claims: any such claim is an error."""
    rule = StopRule(rounds=rounds)
    bound, margin = rule.clean_bound or 0, rule.equivalence_margin or 0
    print(f"\n### Error of the closing claims at the edge: {ARMS} arms, {matrices:,} matrices\n")
    print(
        "| claim | truth | any arm of the family | one arm, exact bound looked at after every round |"
        "\n| --- | --- | --- | --- |"
    )
    generator = np.random.default_rng([seed, 2])
    # A baseline below the bound, so that the claim is not held back.
    arms, baseline = outcomes(generator, matrices, constant([bound] * ARMS, rounds), np.full(rounds, bound / 2))
    error = ever(run_matrices(arms, baseline, rule).kind, Kind.CLEAN_BELOW_BOUND, slice(None))
    naive = clopper_pearson_at_every_look(arms, min(rounds, 100), bound)
    truth = f"every arm {bound:g}, baseline {bound / 2:g}"
    print(f"| clean below {bound:g} | {truth} | {error:.4f} | {naive:.4f} (100 looks) |")
    for low in (0.0, 0.1, 0.4):
        arms, baseline = outcomes(generator, matrices, constant([low + margin] * ARMS, rounds), np.full(rounds, low))
        error = ever(run_matrices(arms, baseline, rule).kind, Kind.EQUIVALENT, slice(None))
        print(f"| equivalent within {margin:g} | {low + margin:g} against {low:g} | {error:.4f} | |")


def runs_to_decide(matrices: int, rounds: int, seed: int) -> None:
    """Rounds until a faulty arm differs from a baseline that never fails, or the other way round."""
    print(f'\n### Runs per arm until "differs", rate against 0; {matrices:,} matrices\n')
    print(
        "| rate | alone: mean (median) | alone: fixed Boschloo, 80 % | share decided by then "
        "| among 10: mean (median) | among 10: fixed, 80 % | share decided by then "
        "| among 10: all trials | fixed: all trials |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for position, rate in enumerate(FAULTS):
        cells = [f"{rate:g}"]
        for arms_in_family in (1, ARMS):
            generator = np.random.default_rng([seed, 3, position, arms_in_family])
            rates = constant([rate] + [0.0] * (arms_in_family - 1), rounds)
            arms, baseline = outcomes(generator, matrices, rates, np.zeros(rounds))
            result = run_matrices(arms, baseline, StopRule(rounds=rounds))
            differs = result.kind[:, 0] == KINDS.index(Kind.DIFFERS)
            taken = np.where(differs, result.rounds[:, 0], rounds)
            fixed = runs_for_power(rate, 0.0, alpha=ALPHA / arms_in_family)
            by_then = float(np.mean(differs & (taken <= (fixed.runs if fixed else 0))))
            cells += [f"{taken.mean():.1f} ({np.median(taken):.0f})", str(fixed.runs if fixed else "-")]
            cells.append(f"{by_then:.2f}")
            if arms_in_family > 1 and fixed:
                cells += [f"{result.trials.mean():.0f}", str(fixed.runs * (ARMS + 1))]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    """Run all three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrices", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--seed", type=int, default=20260930)
    arguments = parser.parse_args()
    started = time.perf_counter()
    for table in (family_wise_error, closing_error, runs_to_decide):
        table(arguments.matrices, arguments.rounds, arguments.seed)
    print(f"\nseed {arguments.seed}, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
