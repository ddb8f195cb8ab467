"""Reads and checks values of users: ranges, durations, moments, quantities. Pure."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, TypeGuard

from holdfast.support.errors import InputError

# Every integer below it fits into a float, and so does a sum of two.
LARGEST = 1e300
GIB = 1024**3
UNIT_S = {
    "s": 1.0,
    "m": 60.0,
    "h": 3_600.0,
    "d": 86_400.0,
}
# Stricter than fromisoformat, which also reads 20270131 and 2027-W05.
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)?")
_DECIMAL = {
    "": 1.0,
    "m": 1e-3,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
}
_BINARY = {f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", start=1)}
_UNITS = _DECIMAL | _BINARY
# Bounded, so that no spelling of a number is infinite or takes long.
_QUANTITY = re.compile(
    r"([+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,2})?)([mkMGTPE]|[KMGTPE]i)?"
)


def between(
    what: str,
    got: object,
    low: float,
    high: float,
    *,
    fix: str = "write a number in this range",
) -> None:
    """Raises InputError unless `got` is a number from `low` to `high`; a bool is no number here."""
    if _is_number(got) and abs(got) < LARGEST and low <= got <= high:
        return
    allowed = f"{low:,} or more"
    if math.isfinite(high):
        allowed = f"{low:,} to {high:,}"
    # The quotes of repr show that a text is not a number.
    raise InputError(
        what,
        got=repr(got) if isinstance(got, str) else got,
        allowed=allowed,
        fix=fix,
    )


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def duration_s(text: str) -> float | None:
    """Returns the seconds of `30s`, `5m`, `72h` or `3d`; None for anything else."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,9})?)([smhd])", text.strip())
    if match is None:
        return None
    return float(match[1]) * UNIT_S[match[2]]


def duration(option: str, text: str, *, least_s: float = 1e-9) -> float:
    """Returns the seconds of `30s`, `5m`, `72h` or `3d`. Raises InputError, which names the
    option.
    """
    seconds = duration_s(text)
    if seconds is None or seconds < least_s:
        is_number = re.fullmatch(r"\d+(\.\d+)?", text.strip())
        raise InputError(
            option,
            got=text,
            allowed="a number with s, m, h or d" + (", above 0" if least_s else ""),
            fix=f"did you mean {text}s, {text}m or {text}h?" if is_number else "as 90s, 5m or 2h",
        )
    return seconds


def moment(text: str) -> datetime | None:
    """Returns an aware time from RFC 3339, in UTC if it has no offset; None for anything else."""
    text = text.strip()
    if not _RFC_3339.fullmatch(text):
        return None
    try:
        time = datetime.fromisoformat(text.upper())
    except ValueError:  # the form is right, but it is no date: month 13
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def unix_s(text: str | None) -> float:
    """Returns the Unix seconds of RFC 3339; 0 if it is missing or invalid."""
    time = moment(text or "")
    return time.timestamp() if time else 0.0


def rfc3339(unix_s: float) -> str:
    """Returns a time such as 2027-01-31T12:00:00Z."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def quantity(value: Any) -> float | None:
    """Returns a Kubernetes quantity as a finite number; None for anything else."""
    if _is_number(value):
        return float(value) if math.isfinite(value) else None
    if not isinstance(value, str):
        return None
    match = _QUANTITY.fullmatch(value.strip())
    if match is None:
        return None
    return float(match[1]) * _UNITS[match[2] or ""]


def finite(value: Any) -> Any:
    """Returns the value for JSON, which has neither NaN nor infinity: they become null."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def settings_help(settings: Mapping[str, str]) -> str:
    """Returns the help of an option `--set NAME=VALUE`. `settings`: name -> what it sets."""
    texts = [f"{name} ({meaning})" for name, meaning in settings.items()]
    return f"Repeatable: {'; '.join(texts)}."


def read_settings(assignments: Iterable[str], kind: type, names: Collection[str]) -> dict[str, Any]:
    """Reads the fields `names` of the dataclass `kind` from NAME=VALUE.

    Each value has the type of the field's default. Raises InputError.
    """
    defaults: dict[str, Any] = {}
    for field in fields(kind):
        if field.name in names:
            defaults[field.name] = field.default
    values: dict[str, Any] = {}
    for text in assignments:
        name, _, value = text.partition("=")
        if name not in defaults or name in values:
            problem = "is given twice" if name in values else "is unknown"
            raise InputError(
                f"the setting {problem}",
                got=text,
                allowed=f"NAME=VALUE, once each: {', '.join(names)}",
                fix="see --help",
            )
        values[name] = _convert(defaults[name], name, value)
    return values


def _convert(default: Any, name: str, text: str) -> Any:
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise InputError(
                f"the setting {name} takes true or false",
                got=text,
                allowed="true, false",
                fix=f"{name}=true",
            )
        return text == "true"
    try:
        return type(default)(text)
    except ValueError:
        raise InputError(
            f"the setting {name} takes a number",
            got=text,
            allowed=f"a number such as {default}",
            fix=f"{name}={default}",
        ) from None
