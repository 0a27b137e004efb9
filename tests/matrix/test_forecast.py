"""What `plan` forecasts, against simulation, enumeration and the documented figures."""

from __future__ import annotations

import time
from typing import Any

import pytest
from isomatrix.matrix.arm import Arm
from isomatrix.matrix.forecast import ForecastError, forecast
from isomatrix.matrix.plan import Plan
from isomatrix.matrix.statistics.power import fixed_power
from isomatrix.matrix.statistics.rule import StopRule
from isomatrix.matrix.statistics.simulation import expected_run


def plan_of(contrasts: int, **stop: Any) -> Plan:
    arms = [Arm("baseline", "", "", (), "baseline", {})]
    arms += [Arm(f"arm{number}", "", "", ((f"axis{number}", "1"),), "baseline", {}) for number in range(contrasts)]
    return Plan(1, stop["rounds"], tuple(arms), stop, {})


def test_a_sequential_plan_is_forecast_by_seeded_simulation() -> None:
    plan = plan_of(8, kind="sequential", rounds=40)
    first, second = forecast(plan, [0.3]), forecast(plan, [0.3])
    assert first == second
    (found,) = first.expected
    rates = {f"arm{number}": 0.3 if number == 0 else 0.0 for number in range(8)}
    run = expected_run(rates, 0.0, StopRule(), repeats=400, seed=1)
    assert (found.runs, found.trials) == (run.arms[0].rounds, pytest.approx(run.trials))
    assert found.trials_p90 == pytest.approx(run.trials_p90)
    assert found.for_power is not None
    assert found.for_power.runs == 29
    assert first.sentences == ("If no arm differs: about 189 trials, each arm closed as below 15 % after 21 rounds.",)


def test_a_fixed_plan_is_forecast_by_exact_power() -> None:
    plan = plan_of(6, kind="fixed", rounds=5)
    result = forecast(plan, [0.9, 0.5])
    assert [found.differs for found in result.expected] == [fixed_power(r, 0.0, 5, alpha=0.05 / 6) for r in (0.9, 0.5)]
    assert [found.for_power.runs for found in result.expected if found.for_power] == [6, 15]
    assert (result.most_trials, result.contrasts, result.repeats) == (35, 6, None)


def test_a_design_that_can_decide_nothing_says_so() -> None:
    fixed = forecast(plan_of(6, kind="fixed", rounds=3), [0.9])
    assert fixed.expected[0].differs == 0
    assert fixed.sentences[0] == (
        "3 rounds cannot decide any of 6 contrasts whatever comes out: p = 0.0313 at best, and 0.0083 is needed."
    )
    watched = forecast(plan_of(6, kind="sequential", rounds=4), [0.9])
    assert watched.sentences == (
        "4 rounds cannot decide any of 6 contrasts whatever comes out.",
        "If no arm differs: about 28 trials; 4 rounds are too few to show any arm's rate below 15 %.",
    )


def test_a_failing_baseline_can_be_asked_for() -> None:
    result = forecast(plan_of(5, kind="sequential", rounds=40), [0.0], baseline_rate=0.5)
    assert result.expected[0].differs > 0.95
    assert not any("below" in sentence for sentence in result.sentences)


def test_the_reference_arm_of_a_crossed_plan_is_counted_once_and_families_share_alpha() -> None:
    base = Arm("baseline", "", "", (), "baseline", {})
    a, load = (Arm(n, "", "", ((n, "1"),), "baseline", {}) for n in ("a", "load"))
    both = Arm("a & load", "", "", (("a", "1"), ("load", "1")), "load", {})
    result = forecast(Plan(1, 40, (base, a, load, both), {"kind": "sequential", "rounds": 40}, {}), [0.9])
    assert (result.contrasts, result.families, result.family) == (3, 2, 2)
    # All four arms run until round 25: at alpha / 2 an arm without a failure takes that long.
    assert result.sentences == ("If no arm differs: about 100 trials, each arm closed as below 15 % after 25 rounds.",)


def test_a_plan_of_the_baseline_alone_has_nothing_to_forecast() -> None:
    result = forecast(plan_of(0, kind="sequential", rounds=7), [0.9])
    assert (result.expected, result.sentences, result.most_trials) == ((), (), 7)


def test_a_budget_of_trials_bounds_the_most_trials() -> None:
    assert forecast(plan_of(3, kind="sequential", rounds=40, max_trials=50), [0.9]).most_trials == 50


def test_rates_outside_zero_to_one_are_refused_by_name() -> None:
    with pytest.raises(ForecastError, match=r"plan\.rates: 1\.2 is no rate"):
        forecast(plan_of(2, kind="fixed", rounds=5), [1.2])
    with pytest.raises(ForecastError, match=r"plan\.baseline_rate: -0\.1"):
        forecast(plan_of(2, kind="fixed", rounds=5), [0.5], -0.1)


@pytest.mark.parametrize(("contrasts", "rounds"), [(6, 40), (30, 40), (10, 400)])
def test_a_forecast_takes_a_moment_whatever_the_size(contrasts: int, rounds: int) -> None:
    started = time.process_time()
    forecast(plan_of(contrasts, kind="sequential", rounds=rounds), [0.9, 0.5, 0.3])
    assert time.process_time() - started < 5  # about one second on an idle machine
