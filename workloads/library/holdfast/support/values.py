"""Values at a border, each form read once: ranges, durations, moments, numbers for JSON. Pure."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from holdfast.support.errors import InputError

# Below it every integer becomes a float, and a sum of two stays one.
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
_UNITS = _DECIMAL | {f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", start=1)}
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
    """A finite number from `low` to `high`, or an InputError; True and False are no numbers here."""
    ok = (
        isinstance(got, int | float)
        and not isinstance(got, bool)
        and abs(got) < LARGEST
        and low <= got <= high
    )
    if not ok:
        allowed = f"{low:,} to {high:,}" if math.isfinite(high) else f"{low:,} or more"
        # A text that reads as a number of the range must not look like one.
        raise InputError(
            what,
            got=repr(got) if isinstance(got, str) else got,
            allowed=allowed,
            fix=fix,
        )


def duration_s(text: str, units: str = "smhd") -> float | None:
    """Seconds of `30s`, `5m`, `72h`, `3d`; None for anything else. `units`: those that are
    understood.
    """
    match = re.fullmatch(rf"(\d{{1,12}}(?:\.\d{{1,9}})?)([{units}])", text.strip())
    return float(match[1]) * UNIT_S[match[2]] if match else None


def moment(text: str) -> datetime | None:
    """An aware time from RFC 3339, UTC without an offset; None for anything else."""
    text = text.strip()
    if not _RFC_3339.fullmatch(text):
        return None
    try:
        at = datetime.fromisoformat(text.upper())
    except ValueError:  # the right form, and no date: month 13
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def unix_s(text: str | None) -> float:
    """Unix seconds of RFC 3339; 0 for nothing or nonsense, which counts as no time."""
    at = moment(text or "")
    return at.timestamp() if at else 0.0


def rfc3339(unix_s: float) -> str:
    """`2027-01-31T12:00:00Z`"""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def quantity(value: Any) -> float | None:
    """A Kubernetes quantity as a finite number, None where it is none."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if math.isfinite(value) else None
    match = _QUANTITY.fullmatch(value.strip() if isinstance(value, str) else "")
    return float(match[1]) * _UNITS[match[2] or ""] if match else None


def finite(value: Any) -> Any:
    """The same value for JSON, which knows neither NaN nor infinity: they are null, at any depth."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def settings_help(settings: Mapping[str, str]) -> str:
    """Of an option `--set NAME=VALUE`. `settings`: name -> what it sets."""
    return f"Repeatable: {'; '.join(f'{name} ({what})' for name, what in settings.items())}."


def assigned(given: Iterable[str], kind: type, names: Collection[str]) -> dict[str, Any]:
    """Fields `names` of the dataclass `kind` from NAME=VALUE, each in the type of its default.
    Raises InputError.
    """
    defaults = {each.name: each.default for each in fields(kind) if each.name in names}
    found: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in defaults or name in found:
            why = "is given twice" if name in found else "is unknown"
            raise InputError(
                f"the setting {why}",
                got=text,
                allowed=f"NAME=VALUE, once each: {', '.join(names)}",
                fix="see --help",
            )
        found[name] = _in_type_of(defaults[name], name, value)
    return found


def _in_type_of(default: Any, name: str, text: str) -> Any:
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
