import pytest

from holdfast.contract.checkpoint_interval import daly

MINUTE_H = 1 / 60


@pytest.mark.parametrize(("mean_life_h", "minutes"), [(24, 117), (6, 57), (0.25, 9.1)])
def test_daly_gives_the_published_intervals(mean_life_h: float, minutes: float) -> None:
    got = daly(5 * MINUTE_H, mean_life_h) / MINUTE_H
    assert got == pytest.approx(minutes, abs=0.5 if minutes > 10 else 0.05)


def test_daly_stops_at_the_mean_life_when_a_checkpoint_takes_longer_than_two_of_them() -> None:
    assert daly(10.0, 2.0) == 2.0
