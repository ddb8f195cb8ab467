"""Each form of a value at a border: what is read, and what is not."""

import json
import math
from dataclasses import dataclass

import pytest

from holdfast.support.errors import InputError
from holdfast.support.values import (
    between,
    duration_s,
    finite,
    moment,
    read_settings,
    rfc3339,
    unix_s,
)


@pytest.mark.parametrize("got", [True, "3", None, math.nan, math.inf, 0, 11])
def test_only_a_finite_number_in_the_range_passes(got: object) -> None:
    with pytest.raises(InputError, match=f"got {got!r}; allowed: 1 to 10"):
        between("field", got, 1, 10)
    between("field", 10**9, 1, math.inf)
    with pytest.raises(InputError, match="1 or more"):
        between("field", 0, 1, math.inf)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("1.5m", 90),
        ("72h", 259_200),
        (" 3d ", 259_200),
    ],
)
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "30", "s", "-1s", "1e3s", "1 s", "inf", "1s1s", "9" * 5_000 + "s"]
)
def test_invalid_durations(text: str) -> None:
    assert duration_s(text) is None


def test_moments_are_read_in_every_form() -> None:
    noon = unix_s("2027-01-31T12:00:00Z")
    assert unix_s("2027-01-31T13:00:00+01:00") == noon
    assert unix_s("2027-01-31t12:00:00z") == noon
    assert unix_s("2027-01-31T12:00:00.000000000Z") == noon
    assert unix_s("2027-01-31 12:00:00") == noon
    assert rfc3339(noon) == "2027-01-31T12:00:00Z"


@pytest.mark.parametrize(
    "text", ["", "20270131", "2027-01-31", "2027-13-31T12:00:00Z", "2027-01-31T12:00", "now"]
)
def test_invalid_moments(text: str) -> None:
    assert moment(text) is None
    assert unix_s(text) == 0.0


def test_nan_and_infinity_become_null_at_any_depth() -> None:
    value = {
        "a": [1.5, math.nan, (math.inf, {"b": -math.inf})],
        "c": "NaN",
    }
    assert (
        json.dumps(finite(value), allow_nan=False)
        == '{"a": [1.5, null, [null, {"b": null}]], "c": "NaN"}'
    )


@dataclass(frozen=True)
class Dials:
    count: int = 3
    wait_s: float = 1.5
    quick: bool = True
    host: str = "here"
    fixed: int = 0


DIALS = ("count", "wait_s", "quick", "host")


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (("fixed=1",), "the setting is unknown"),
        (("count",), "the setting count takes a number"),
        (("count=1.5",), "the setting count takes a number"),
        (("quick=1",), "the setting quick takes true or false"),
        (("count=1", "count=2"), "the setting is given twice"),
    ],
)
def test_settings_take_their_defaults_type(settings: tuple[str, ...], error: str) -> None:
    right = ("count=7", "wait_s=2", "quick=false", "host=a=b")
    assert read_settings(right, Dials, DIALS) == {
        "count": 7,
        "wait_s": 2.0,
        "quick": False,
        "host": "a=b",
    }
    with pytest.raises(InputError, match=error):
        read_settings(settings, Dials, DIALS)
