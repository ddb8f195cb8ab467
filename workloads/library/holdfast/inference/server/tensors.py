"""Open Inference Protocol v2: a request's tensors become items, items' values become tensors. Pure.

Tensors come and go as JSON. An item is one row along the first dimension. Of a request with one
input of BYTES and shape [n] the item is the text itself; of any other it is a JSON object {input:
row}. Source: KServe, Open Inference Protocol, REST.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn, cast

from holdfast.inference.errors import Refused
from holdfast.inference.values import Value

MAX_INPUTS = 64
MAX_DIMENSIONS = 8
MAX_VALUES = 1_000_000
"""Of a body: three bytes of it may be an object of a hundred."""
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class InferRequest:
    id: str | None
    bodies: list[bytes]
    outputs: list[str]
    """Names of those that are wanted; empty: all."""


def _integers(low: int, high: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _is_finite(value: object) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(cast("float", value))
    except OverflowError:  # an integer beyond every float
        return False


_FITS: dict[str, Callable[[object], bool]] = {
    "BYTES": lambda value: isinstance(value, str),
    "BOOL": lambda value: isinstance(value, bool),
    **{f"UINT{bits}": _integers(0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    **{
        f"INT{bits}": _integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)
    },
    **{f"FP{bits}": _is_finite for bits in (16, 32, 64)},
}


def parse(body: bytes, most_items: int) -> InferRequest:
    """Refused with 400 for what is no request, with 413 for more items than a batch holds."""
    request = json_object(body)
    _require_known(request)
    found = request.get("inputs")
    if not isinstance(found, list) or not 1 <= len(cast("list[object]", found)) <= MAX_INPUTS:
        raise Refused(400, f"inputs must be a list of 1 to {MAX_INPUTS} tensors")
    given = request.get("id")
    if given is not None and not isinstance(given, str):
        raise Refused(400, "id must be text")
    inputs = [_Input.of(tensor) for tensor in cast("list[object]", found)]
    counts = {tensor.shape[0] for tensor in inputs}
    if len(counts) > 1 or len({tensor.name for tensor in inputs}) < len(inputs):
        raise Refused(400, "inputs must have different names and one first dimension")
    (count,) = counts
    if count > most_items:
        raise Refused(413, f"{count} items; the maximum per request is {most_items}")
    return InferRequest(
        id=given,
        bodies=_bodies(inputs, count),
        outputs=_outputs(request),
    )


def _require_known(found: Mapping[str, object]) -> None:
    """Refused with 400 for parameters that would change the answer and are not supported."""
    given = found.get("parameters") or {}
    if not isinstance(given, dict):
        raise Refused(400, "parameters must be an object")
    for name in cast("dict[str, object]", given):
        if name.startswith(("shared_memory", "sequence_")) or name in (
            "classification",
            "binary_data_size",
        ):
            raise Refused(400, f"the parameter {name} is not supported")


def _outputs(request: Mapping[str, object]) -> list[str]:
    found: list[str] = []
    wanted = request.get("outputs") or []
    for each in cast("list[object]", wanted) if isinstance(wanted, list) else [None]:
        match each:
            case {"name": str(name)}:
                _require_known(cast("dict[str, object]", each))
                found.append(name)
            case _:
                raise Refused(400, "outputs must be a list of objects with a name")
    return list(dict.fromkeys(found))


def json_object(body: bytes) -> dict[str, Any]:
    """Refused with 400, and with 413 for more values than MAX_VALUES."""
    if _values(body) > MAX_VALUES and _values(_TEXT.sub(b"", body)) > MAX_VALUES:
        raise Refused(413, f"the maximum number of JSON values is {MAX_VALUES}")
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Refused(
            400, "the body is not valid JSON (NaN and Infinity are not allowed)"
        ) from None
    if not isinstance(value, dict):
        raise Refused(400, "the body must be a JSON object")
    return cast("dict[str, Any]", value)


def _values(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


@dataclass(frozen=True, slots=True)
class _Input:
    name: str
    datatype: str
    shape: list[int]
    data: list[object]

    @classmethod
    def of(cls, tensor: object) -> "_Input":
        match tensor:
            case {"name": str(name), "datatype": str(datatype), "shape": list(shape)}:
                tensor = cast("dict[str, object]", tensor)
                shape = cast("list[object]", shape)
            case _:
                raise Refused(400, "an input must be an object with name, datatype, shape and data")
        if datatype not in _FITS:
            raise Refused(400, f"datatype must be one of {', '.join(_FITS)}")
        if not 1 <= len(shape) <= MAX_DIMENSIONS or not all(
            type(n) is int and 0 < n <= 2**31 for n in shape
        ):
            raise Refused(400, f"shape must be 1 to {MAX_DIMENSIONS} positive whole numbers")
        sizes = cast("list[int]", shape)
        _require_known(tensor)
        data = tensor.get("data")
        flat = _flat(cast("list[object]", data), sizes) if isinstance(data, list) else []
        if len(flat) != math.prod(sizes) or not all(map(_FITS[datatype], flat)):
            raise Refused(400, f"data of {name[:80]!r} must be {sizes} values of {datatype}")
        return cls(name, datatype, sizes, flat)


def _flat(data: list[object], sizes: Sequence[int]) -> list[object]:
    """Row-major. The protocol lets data be flat, or nested as its shape; anything else stays as it
    is and fits no type.
    """
    flat = data
    for size, inner in pairwise(sizes):
        rows = [cast("list[object]", row) for row in flat if isinstance(row, list)]
        if len(rows) < len(flat) or len(rows) % size or any(len(row) != inner for row in rows):
            return data
        flat = [value for row in rows for value in row]
    return flat


def _bodies(inputs: Sequence[_Input], count: int) -> list[bytes]:
    try:
        if len(inputs) == 1 and inputs[0].datatype == "BYTES" and len(inputs[0].shape) == 1:
            return [cast("str", text).encode() for text in inputs[0].data]
        rows = [{tensor.name: _row(tensor, n) for tensor in inputs} for n in range(count)]
        return [json.dumps(row, ensure_ascii=False).encode() for row in rows]
    except UnicodeError:
        raise Refused(400, "a text contains an unpaired surrogate") from None


def _row(tensor: _Input, n: int) -> object:
    size = math.prod(tensor.shape[1:])
    values: list[object] = tensor.data[n * size : (n + 1) * size]
    for width in reversed(tensor.shape[2:]):
        values = [values[at : at + width] for at in range(0, len(values), width)]
    return values if len(tensor.shape) > 1 else values[0]


def answer(
    found: Sequence[Value],
    *,
    model: str,
    commit: str,
    request: InferRequest,
) -> dict[str, object]:
    """One output for each key that all values have; else one output of JSON texts. Refused with 400
    for an output that there is not.
    """
    columns = _columns(found)
    missing = set(request.outputs) - columns.keys()
    if missing:
        raise Refused(400, f"no output {min(missing)[:80]!r}; there are {', '.join(columns)[:300]}")
    outputs = [_described(name, columns[name]) for name in request.outputs or columns]
    content: dict[str, object] = {
        "model_name": model,
        "model_version": commit,
        "outputs": outputs,
    }
    return content | ({} if request.id is None else {"id": request.id})


def _columns(found: Sequence[Value]) -> dict[str, list[object]]:
    keys = list(found[0])
    if any(value.keys() != found[0].keys() for value in found) or not keys:
        return {"output": list[object](found)}
    return {key: [value[key] for value in found] for key in keys}


def _described(name: str, column: Sequence[object]) -> dict[str, object]:
    datatype = next(
        (kind for kind in ("BOOL", "INT64", "FP64", "BYTES") if all(map(_FITS[kind], column))), ""
    )
    data = list(column) if datatype else [json.dumps(value) for value in column]
    return {
        "name": name,
        "datatype": datatype or "BYTES",
        "shape": [len(column)],
        "data": data,
    }


def outputs_like(sample: Value) -> list[Mapping[str, object]]:
    """The metadata of outputs that one value shows."""
    described = (_described(name, column) for name, column in _columns([sample]).items())
    return [
        {
            "name": each["name"],
            "datatype": each["datatype"],
            "shape": [-1],
        }
        for each in described
    ]
