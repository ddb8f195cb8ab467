from pathlib import Path

import numpy as np
import pytest

from holdfast.contract.errors import InputError
from holdfast.contract.machines import ACCELERATORS
from holdfast.place import hazard, scenarios

UNKNOWN = np.zeros(len(hazard.AGES_H))


@pytest.mark.parametrize("churn", [0.01, 0.1, 1.0])
def test_mean_life_is_one_over_the_churn(churn: float) -> None:
    hours = hazard.lifetimes(np.random.default_rng(1), np.full(2_000, churn), 100)
    assert hours.mean() == pytest.approx(1 / churn, rel=0.02)


def test_a_machine_that_survived_its_first_hours_is_safer() -> None:
    hours = hazard.lifetimes(np.random.default_rng(1), np.full(1_000, 0.1), 100).ravel()
    young, old = (np.mean(hours[hours > age] < age + 1.0) for age in (0.0, 12.0))
    assert young == pytest.approx(0.46, abs=0.03)
    assert old < 0.1 * young


def test_measurement_replaces_the_prior_as_exposure_grows() -> None:
    belief = hazard.prior("nvidia-l4")
    assert belief.per_hour == pytest.approx(0.05)
    few = hazard.measure(belief, events=1, exposure_h=4, ages_h=UNKNOWN)
    many = hazard.measure(belief, events=250, exposure_h=1_000, ages_h=UNKNOWN)
    assert belief.per_hour < few.per_hour < many.per_hour == pytest.approx(0.25, rel=0.04)
    spread = [np.ptp(np.quantile(b.draw(np.random.default_rng(0), 4_000), [0.05, 0.95])) / b.per_hour
              for b in (belief, few, many)]  # fmt: skip
    assert spread == sorted(spread, reverse=True)
    assert hazard.measure(belief, events=0, exposure_h=960, ages_h=UNKNOWN).per_hour == pytest.approx(0.002)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"groups": [{"machine_type": "g2-standard-8"}]}', '{"groups": 3}', '{"groups": []}']
)
def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "churn.json"
    path.write_text(text)
    with pytest.raises(InputError, match="measured churn"):
        hazard.read_measured(path, "nvidia-l4")


@pytest.mark.parametrize(("events", "hours"), [(1, 0), (-1, 10), (1, float("nan"))])
def test_impossible_measurements_are_refused(events: float, hours: float) -> None:
    with pytest.raises(InputError, match="measured churn"):
        hazard.measure(hazard.prior("nvidia-l4"), events=events, exposure_h=hours, ages_h=UNKNOWN)


def test_every_accelerator_of_the_vocabulary_has_a_prior() -> None:
    assert set(hazard.PRIOR_CHURN) == set(ACCELERATORS)


def test_spot_paths_begin_with_a_wait_and_flex_paths_end_as_planned() -> None:
    rng = np.random.default_rng(1)
    waits = scenarios.lognormal(2.0, 0.5)
    spans = hazard.gang_lives(rng, np.full(500, 0.1), units=1, per_path=40)
    spot = hazard.spot_paths(spans, waits.draw(rng, 500, 40))
    assert not spot.starts_up.any()
    assert not spot.planned
    assert np.all(np.diff(spot.edges_h) >= 0)
    flex = hazard.flex_paths(rng, 20_000, max_run_h=168, rounds=3, waits=waits)
    assert flex.planned
    assert np.allclose(flex.edges_h[:, 1] - flex.edges_h[:, 0], 168)
    assert np.median(flex.edges_h[:, 0]) == pytest.approx(0.5, rel=0.05)
