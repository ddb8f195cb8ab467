"""Open Inference Protocol v2: a request's tensors become items, items' values become tensors. Pure.

Tensors may come and go as JSON or in binary. An item is one row along the first dimension. Of a request with one input of BYTES and shape [n] the item is the text
itself; of any other it is a JSON object {input: row}. Source: KServe, Open Inference Protocol, REST.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn, cast

from holdfast.inference.errors import Refused
from holdfast.inference.server import binary
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
    outputs: Mapping[str, bool]
    """Those that are wanted, each in binary or not; empty: all."""
    binary: bool
    """Those that are not named."""


def _integers(low: int, high: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _is_finite(value: object) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(cast("float", value))
    except OverflowError:  # an integer beyond every float
        return False


_FITS: dict[str, Callable[[object], bool]] = {
    "BYTES": lambda value: isinstance(value, str | bytes),
    "BOOL": lambda value: isinstance(value, bool),
    **{f"UINT{bits}": _integers(0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": _integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": _is_finite for bits in (16, 32, 64)},
}


def parse(body: bytes, most_items: int, json_length: str | None = None) -> InferRequest:
    """Refused with 400 for what is no request, with 413 for more items than a batch holds."""
    text, blobs = binary.split(body, json_length)
    request = json_object(text)
    found = request.get("inputs")
    if not isinstance(found, list) or not 1 <= len(cast("list[object]", found)) <= MAX_INPUTS:
        raise Refused(400, f"inputs must be a list of 1 to {MAX_INPUTS} tensors")
    given = request.get("id")
    if given is not None and not isinstance(given, str):
        raise Refused(400, "id must be text")
    inputs = [_Input.of(tensor, blobs) for tensor in cast("list[object]", found)]
    blobs.end()
    counts = {tensor.shape[0] for tensor in inputs}
    if len(counts) > 1 or len({tensor.name for tensor in inputs}) < len(inputs):
        raise Refused(400, "inputs must have different names and one first dimension")
    (count,) = counts
    if count > most_items:
        raise Refused(413, f"{count} items; the maximum per request is {most_items}")
    in_binary = _parameters(request).get("binary_data_output", False) is True
    return InferRequest(id=given, bodies=_bodies(inputs, count), outputs=_outputs(request, in_binary), binary=in_binary)


def _parameters(found: Mapping[str, object]) -> Mapping[str, object]:
    """Refused with 400 for those that would change the answer and are not supported."""
    given = found.get("parameters") or {}
    if not isinstance(given, dict):
        raise Refused(400, "parameters must be an object")
    given = cast("dict[str, object]", given)
    for name in given:
        if name.startswith(("shared_memory", "sequence_")) or name == "classification":
            raise Refused(400, f"the parameter {name} is not supported")
    return given


def _outputs(request: Mapping[str, object], in_binary: bool) -> dict[str, bool]:
    found: dict[str, bool] = {}
    wanted = request.get("outputs") or []
    for each in cast("list[object]", wanted) if isinstance(wanted, list) else [None]:
        match each:
            case {"name": str(name)}:
                found[name] = _parameters(cast("dict[str, object]", each)).get("binary_data", in_binary) is True
            case _:
                raise Refused(400, "outputs must be a list of objects with a name")
    return found


def json_object(body: bytes) -> dict[str, Any]:
    """Refused with 400, and with 413 for more values than MAX_VALUES."""
    if _values(body) > MAX_VALUES and _values(_TEXT.sub(b"", body)) > MAX_VALUES:
        raise Refused(413, f"the maximum number of JSON values is {MAX_VALUES}")
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not valid JSON (NaN and Infinity are not allowed)") from None
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
    def of(cls, tensor: object, blobs: binary.Blobs) -> "_Input":
        match tensor:
            case {"name": str(name), "datatype": str(datatype), "shape": list(shape)}:
                tensor, shape = cast("dict[str, object]", tensor), cast("list[object]", shape)
            case _:
                raise Refused(400, "an input must be an object with name, datatype, shape and data")
        if datatype not in _FITS:
            raise Refused(400, f"datatype must be one of {', '.join(_FITS)}")
        if not 1 <= len(shape) <= MAX_DIMENSIONS or not all(type(n) is int and 0 < n <= 2**31 for n in shape):
            raise Refused(400, f"shape must be 1 to {MAX_DIMENSIONS} positive whole numbers")
        sizes = cast("list[int]", shape)
        flat = _data(tensor, datatype, sizes, blobs)
        if len(flat) != math.prod(sizes) or not all(map(_FITS[datatype], flat)):
            raise Refused(400, f"data of {name[:80]!r} must be {sizes} values of {datatype}")
        return cls(name, datatype, sizes, flat)


def _data(tensor: Mapping[str, object], datatype: str, sizes: Sequence[int], blobs: binary.Blobs) -> list[object]:
    parameters = _parameters(tensor)
    if binary.SIZE not in parameters:
        data = tensor.get("data")
        return _flat(cast("list[object]", data), sizes) if isinstance(data, list) else []
    if math.prod(sizes) > MAX_VALUES:
        raise Refused(413, f"the maximum number of values is {MAX_VALUES}")
    return binary.values(datatype, math.prod(sizes), blobs.take(parameters[binary.SIZE]))


def _flat(data: list[object], sizes: Sequence[int]) -> list[object]:
    """Row-major. The protocol lets data be flat, or nested as its shape; anything else stays as it is and fits no type."""
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
            return [text if isinstance(text, bytes) else cast("str", text).encode() for text in inputs[0].data]
        rows = [{tensor.name: _row(tensor, n) for tensor in inputs} for n in range(count)]
        return [json.dumps(row, ensure_ascii=False, default=bytes.decode).encode() for row in rows]
    except UnicodeError:
        raise Refused(400, "a text is no UTF-8, or contains an unpaired surrogate") from None


def _row(tensor: _Input, n: int) -> object:
    size = math.prod(tensor.shape[1:])
    values: list[object] = tensor.data[n * size : (n + 1) * size]
    for width in reversed(tensor.shape[2:]):
        values = [values[at : at + width] for at in range(0, len(values), width)]
    return values if len(tensor.shape) > 1 else values[0]


def answer(found: Sequence[Value], *, model: str, commit: str, request: InferRequest) -> tuple[bytes, int | None]:
    """One output for each key that all values have; else one output of JSON texts. With the length of the JSON where
    tensors follow it. Refused with 400 for an output that there is not."""
    columns = _columns(found)
    if missing := request.outputs.keys() - columns.keys():
        raise Refused(400, f"no output {min(missing)[:80]!r}; there are {', '.join(columns)[:300]}")
    blobs, outputs = list[bytes](), list[Mapping[str, object]]()
    for name in request.outputs or columns:
        tensor, data = _described(name, columns[name])
        if request.outputs.get(name, request.binary):
            blobs.append(binary.encoded(str(tensor["datatype"]), data))
            outputs.append(tensor | {"parameters": {binary.SIZE: len(blobs[-1])}})
        else:
            outputs.append(tensor | {"data": data})
    content: dict[str, object] = {"model_name": model, "model_version": commit, "outputs": outputs}
    text = json.dumps(content | ({} if request.id is None else {"id": request.id})).encode()
    return b"".join((text, *blobs)), len(text) if blobs else None


def _columns(found: Sequence[Value]) -> dict[str, list[object]]:
    keys = list(found[0])
    if any(value.keys() != found[0].keys() for value in found) or not keys:
        return {"output": list[object](found)}
    return {key: [value[key] for value in found] for key in keys}


def _described(name: str, column: Sequence[object]) -> tuple[dict[str, object], Sequence[object]]:
    datatype = next((kind for kind in ("BOOL", "INT64", "FP64", "BYTES") if all(map(_FITS[kind], column))), "")
    data = list(column) if datatype else [json.dumps(value) for value in column]
    return {"name": name, "datatype": datatype or "BYTES", "shape": [len(column)]}, data


def outputs_like(sample: Value) -> list[Mapping[str, object]]:
    """The metadata of outputs that one value shows."""
    return [_described(name, column)[0] | {"shape": [-1]} for name, column in _columns([sample]).items()]
