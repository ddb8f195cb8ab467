"""What a predicting process may answer, checked in the worker: that process runs a model's code, which is not ours."""

import json
from collections.abc import Mapping
from typing import Any, cast

from holdfast.contract.errors import InputError
from holdfast.inference.errors import ItemFault, LoaderFailed, PredictorBroken
from holdfast.inference.values import Value

MAX_CONFIGURATION_CHARS = 64 * 1024
MAX_SECONDS = 1e9
"""Of one answer. An integer in JSON may be too large for a float."""


def raise_error(reply: Mapping[str, Any]) -> None:
    match reply:
        case {"input": {"what": str(what), "got": str(got), "allowed": str(allowed), "fix": str(fix)}}:
            raise InputError(what, got=got, allowed=allowed, fix=fix)
        case {"broken": str(why)}:
            raise PredictorBroken(why)
        case {"bug": str(why)}:
            raise LoaderFailed(why)
        case {"fault": [str(error_class), str(why)]}:
            raise ItemFault(error_class, why)
        case _:
            return


def values_of(reply: Any, count: int) -> tuple[list[Value], float]:
    """The values of `count` items, and the seconds that predicting them took."""
    if not isinstance(reply, dict):
        raise _unreadable("no object")
    reply = cast("dict[str, Any]", reply)
    raise_error(reply)
    values, seconds = reply.get("values"), reply.get("seconds")
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in cast("list[object]", values)):
        raise _unreadable("values must be a list of objects")
    if len(cast("list[object]", values)) != count:
        raise _unreadable(f"{len(cast('list[object]', values))} values for {count} items")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < MAX_SECONDS:
        raise _unreadable("seconds must be a number")
    return cast("list[Value]", values), float(seconds)


def configuration_of(found: object) -> dict[str, object]:
    """Part of every result's key, so it must be the same in JSON as in memory."""
    if isinstance(found, Mapping):
        found = dict(cast("Mapping[str, object]", found))
    try:
        text = json.dumps(found, allow_nan=False)
        same = isinstance(found, dict) and json.loads(text) == found and len(text) <= MAX_CONFIGURATION_CHARS
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same:
        raise InputError(
            "the predictor's configuration cannot be stored",
            got=type(found).__name__,
            allowed=f"an object of plain JSON values with text for keys, at most {MAX_CONFIGURATION_CHARS} characters",
            fix="remove values that do not affect results",
        )
    return cast("dict[str, object]", found)


def _unreadable(why: str) -> ItemFault:
    return ItemFault("ValueError", f"an answer cannot be read: {why}")
