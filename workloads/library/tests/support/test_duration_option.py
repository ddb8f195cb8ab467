"""Options of processes take durations, and seconds without a unit."""

import pytest
import typer
from typer.testing import CliRunner

from holdfast.commands import app
from holdfast.support.duration_option import parse_seconds


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("90s", 90.0),
        ("15m", 900.0),
        ("72h", 259_200.0),
        ("7d", 604_800.0),
        ("15", 15.0),
        (15, 15.0),
    ],
)
def test_durations_and_seconds(value: str | float, seconds: float) -> None:
    assert parse_seconds(value) == seconds


@pytest.mark.parametrize("value", ["", "1w", "-5s", "nan", "1e3", "5 s"])
def test_anything_else_is_refused(value: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no duration such as 90s"):
        parse_seconds(value)


def test_the_option_is_named() -> None:
    done = CliRunner().invoke(app, ["train", "run", "--window", "soon"])
    assert done.exit_code == 2
    assert "--window" in done.output
    assert "'soon' is no duration" in done.output
