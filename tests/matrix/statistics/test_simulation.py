"""The simulation over arrays follows the same rule as the decisions from rows."""

from __future__ import annotations

import numpy as np
import pytest
from isomatrix.matrix.statistics.rule import StopRule
from isomatrix.matrix.statistics.sequential import Kind, decide
from isomatrix.matrix.statistics.simulation import KINDS, expected_run, run_matrices


@pytest.mark.parametrize(
    ("rates", "baseline"), [([0.3, 0.0, 0.02, 0.9], 0.0), ([0.9, 0.3, 0.0], 0.9), ([0.3, 0.3, 0.0], 0.3)]
)
@pytest.mark.parametrize("rule", [StopRule(rounds=30), StopRule(rounds=24, clean_bound=0.3, alpha=0.1, min_rounds=6)])
def test_equals_the_decisions_from_rows(rates: list[float], baseline: float, rule: StopRule) -> None:
    generator = np.random.default_rng(11)
    arms = generator.random((2, len(rates), rule.rounds)) < np.array(rates)[None, :, None]
    base = generator.random((2, rule.rounds)) < baseline
    result = run_matrices(arms, base, rule)
    for matrix in range(2):
        rows = [
            (number, f"arm {arm}", bool(arms[matrix, arm, number]))
            for arm in range(len(rates))
            for number in range(rule.rounds)
        ]
        rows += [(number, "base", bool(base[matrix, number])) for number in range(rule.rounds)]
        decisions = decide(rows, baseline="base", rule=rule)
        for arm in range(len(rates)):
            decision = decisions[f"arm {arm}"]
            assert decision.kind is KINDS[result.kind[matrix, arm]]
            assert decision.round == result.rounds[matrix, arm] - 1
        assert result.trials[matrix] == result.rounds[matrix].sum() + result.rounds[matrix].max()


def test_family_wise_error_stays_at_or_below_alpha_under_optional_stopping() -> None:
    generator = np.random.default_rng(3)
    rule = StopRule(rounds=60, clean_bound=None, equivalence_margin=None)
    result = run_matrices(generator.random((400, 10, 60)) < 0.3, generator.random((400, 60)) < 0.3, rule)
    assert np.mean(np.any(result.kind == KINDS.index(Kind.DIFFERS), axis=1)) <= 0.05


def test_expected_runs_of_a_planted_fault_are_seeded_and_below_the_fixed_design() -> None:
    rates = {"fault": 0.5, **{f"arm {number}": 0.0 for number in range(7)}}
    expected = expected_run(rates, 0.0, StopRule(), repeats=100, seed=4)
    assert expected == expected_run(rates, 0.0, StopRule(), repeats=100, seed=4)
    fault = expected.arms[0]
    assert fault.shares[Kind.DIFFERS] > 0.9
    assert 12 < fault.rounds < 22
    assert expected.arms[1].shares[Kind.CLEAN_BELOW_BOUND] == 1
    assert expected.trials <= expected.trials_p90 < 9 * 40


def test_expected_runs_need_a_sequential_rule_and_an_arm() -> None:
    with pytest.raises(ValueError, match="sequential rule"):
        expected_run({"a": 0.1}, 0, StopRule(kind="fixed"))
    with pytest.raises(ValueError, match="at least one arm"):
        expected_run({}, 0, StopRule())
