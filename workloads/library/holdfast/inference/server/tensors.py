"""The Open Inference Protocol v2: tensors of a request become items, values become tensors. Pure.

Tensors are JSON in both directions. An item is one row along the first dimension. If a request has
one input of BYTES and shape [n], the item is the text itself; otherwise it is a JSON object
{input: row}. Source: KServe, Open Inference Protocol, REST.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn, cast

from holdfast.inference.errors import Refused
from holdfast.inference.values import DATATYPES, Value

MAX_INPUTS = 64
MAX_DIMENSIONS = 8
MAX_VALUES = 1_000_000
"""The maximum for a body: three bytes of it may become an object of a hundred."""
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class InferRequest:
    id: str | None
    bodies: list[bytes]
    outputs: list[str]
    """The names of the requested outputs; empty for all."""


Check = Callable[[object], bool]


def _make_integer_check(low: int, high: int) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def _is_finite(value: object) -> bool:
    try:
        is_number = type(value) in (int, float)
        return is_number and math.isfinite(cast("float", value))
    except OverflowError:  # an integer beyond every float
        return False


def _make_check(datatype: str) -> Check:
    """Makes the check of a single value."""
    if datatype == "BYTES":
        return lambda value: isinstance(value, str)
    if datatype == "BOOL":
        return lambda value: isinstance(value, bool)
    if datatype.startswith("FP"):
        return _is_finite
    bits = int(datatype.partition("INT")[2])
    if datatype.startswith("U"):
        return _make_integer_check(0, 2**bits - 1)
    limit = 2 ** (bits - 1)
    return _make_integer_check(-limit, limit - 1)


_CHECKS = {datatype: _make_check(datatype) for datatype in DATATYPES}
_ZEROS: Mapping[str, object] = {
    "BYTES": "",
    "BOOL": False,
}
_OUTPUT_DATATYPES = ("BOOL", "INT64", "FP64", "BYTES")


def parse(body: bytes, most_items: int) -> InferRequest:
    """Parses the body of a request.

    Raises Refused with 400 for an invalid request, with 413 for more items than a batch holds.
    """
    request = parse_object(body)
    _refuse_unsupported(request)
    request_id = request.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise Refused(400, "id must be text")
    inputs = _parse_inputs(request.get("inputs"))
    count = inputs[0].shape[0]
    if count > most_items:
        raise Refused(413, f"{count} items; the maximum per request is {most_items}")
    return InferRequest(
        id=request_id,
        bodies=_make_bodies(inputs, count),
        outputs=_parse_outputs(request.get("outputs")),
    )


def _refuse_unsupported(mapping: Mapping[str, object]) -> None:
    """Raises Refused with 400 for parameters that change the response and are not supported."""
    parameters = mapping.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise Refused(400, "parameters must be an object")
    for name in cast("dict[str, object]", parameters):
        is_group = name.startswith(("shared_memory", "sequence_"))
        if is_group or name in ("classification", "binary_data_size"):
            raise Refused(400, f"the parameter {name} is not supported")


def _parse_outputs(outputs: object) -> list[str]:
    """Returns the names of the requested outputs, each once."""
    message = "outputs must be a list of objects with a name"
    if not isinstance(outputs or [], list):
        raise Refused(400, message)
    names: dict[str, None] = {}
    for output in cast("list[object]", outputs or []):
        match output:
            case {"name": str(name)}:
                _refuse_unsupported(cast("dict[str, object]", output))
                names[name] = None
            case _:
                raise Refused(400, message)
    return list(names)


def parse_object(body: bytes) -> dict[str, Any]:
    """Parses a JSON object.

    Raises Refused with 400 for anything else, with 413 for more values than MAX_VALUES.
    """
    # Commas and brackets within texts do not count, but removing texts takes time.
    is_large = _count_values(body) > MAX_VALUES
    if is_large and _count_values(_TEXT.sub(b"", body)) > MAX_VALUES:
        raise Refused(413, f"the maximum number of JSON values is {MAX_VALUES}")
    try:
        value = _DECODER.decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except (ValueError, RecursionError):
        message = "the body is not valid JSON (NaN and Infinity are not allowed)"
        raise Refused(400, message) from None
    if not isinstance(value, dict):
        raise Refused(400, "the body must be a JSON object")
    return cast("dict[str, Any]", value)


def _count_values(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


@dataclass(frozen=True, slots=True)
class _Input:
    name: str
    datatype: str
    shape: list[int]
    data: list[object]


def _parse_inputs(tensors: object) -> list[_Input]:
    if not isinstance(tensors, list) or not tensors:
        raise Refused(400, f"inputs must be a list of 1 to {MAX_INPUTS} tensors")
    tensors = cast("list[object]", tensors)
    if len(tensors) > MAX_INPUTS:
        raise Refused(400, f"inputs must be a list of 1 to {MAX_INPUTS} tensors")
    inputs = [_parse_input(tensor) for tensor in tensors]
    names = {tensor.name for tensor in inputs}
    counts = {tensor.shape[0] for tensor in inputs}
    if len(names) < len(inputs) or len(counts) > 1:
        raise Refused(400, "inputs must have different names and one first dimension")
    return inputs


def _parse_input(tensor: object) -> _Input:
    match tensor:
        case {"name": str(name), "datatype": str(datatype), "shape": list(shape)}:
            tensor = cast("dict[str, object]", tensor)
            shape = cast("list[object]", shape)
        case _:
            raise Refused(400, "an input must be an object with name, datatype, shape and data")
    if datatype not in _CHECKS:
        raise Refused(400, f"datatype must be one of {', '.join(_CHECKS)}")
    sizes = _check_shape(shape)
    _refuse_unsupported(tensor)
    data = tensor.get("data")
    values = _flatten(cast("list[object]", data), sizes) if isinstance(data, list) else []
    if len(values) != math.prod(sizes) or not _are_all(datatype, values):
        raise Refused(400, f"data of {name[:80]!r} must be {sizes} values of {datatype}")
    return _Input(name, datatype, sizes, values)


def _check_shape(shape: list[object]) -> list[int]:
    is_valid = 1 <= len(shape) <= MAX_DIMENSIONS
    for size in shape:
        is_valid = is_valid and type(size) is int and 0 < size <= 2**31
    if not is_valid:
        raise Refused(400, f"shape must be 1 to {MAX_DIMENSIONS} positive whole numbers")
    return cast("list[int]", shape)


def _are_all(datatype: str, values: Sequence[object]) -> bool:
    return all(map(_CHECKS[datatype], values))


def _flatten(data: list[object], sizes: Sequence[int]) -> list[object]:
    """Returns the values in row-major order.

    The protocol allows data that is flat, or nested as its shape. Any other data is returned as it
    is, and no datatype accepts it.
    """
    values = data
    for size, inner in pairwise(sizes):
        rows = [cast("list[object]", row) for row in values if isinstance(row, list)]
        if len(rows) < len(values) or len(rows) % size:
            return data
        values = []
        for row in rows:
            if len(row) != inner:
                return data
            values.extend(row)
    return values


def _make_bodies(inputs: Sequence[_Input], count: int) -> list[bytes]:
    first = inputs[0]
    is_texts = len(inputs) == 1 and first.datatype == "BYTES" and len(first.shape) == 1
    bodies: list[bytes] = []
    try:
        for n in range(count):
            if is_texts:
                text = cast("str", first.data[n])
            else:
                item = {tensor.name: _extract_row(tensor, n) for tensor in inputs}
                text = json.dumps(item, ensure_ascii=False)
            bodies.append(text.encode())
    except UnicodeError:
        raise Refused(400, "a text contains an unpaired surrogate") from None
    return bodies


def _extract_row(tensor: _Input, n: int) -> object:
    size = math.prod(tensor.shape[1:])
    start = n * size
    values: list[object] = tensor.data[start : start + size]
    for width in reversed(tensor.shape[2:]):
        starts = range(0, len(values), width)
        values = [values[start : start + width] for start in starts]
    return values if len(tensor.shape) > 1 else values[0]


def encode_response(
    values: Sequence[Value],
    *,
    model: str,
    commit: str,
    request: InferRequest,
) -> dict[str, object]:
    """Returns the content of a response.

    It has one output for each key that all values have, or else one output of JSON texts. Raises
    Refused with 400 for an unknown output.
    """
    columns = _make_columns(values)
    unknown = set(request.outputs) - columns.keys()
    if unknown:
        names = ", ".join(columns)
        raise Refused(400, f"no output {min(unknown)[:80]!r}; there are {names[:300]}")
    outputs: list[object] = []
    for name in request.outputs or columns:
        datatype, data = _encode_column(columns[name])
        outputs.append(
            {
                "name": name,
                "datatype": datatype,
                "shape": [len(data)],
                "data": data,
            }
        )
    content: dict[str, object] = {
        "model_name": model,
        "model_version": commit,
        "outputs": outputs,
    }
    if request.id is not None:
        content["id"] = request.id
    return content


def _make_columns(values: Sequence[Value]) -> dict[str, list[object]]:
    keys = values[0].keys()
    has_same_keys = all(value.keys() == keys for value in values)
    if not keys or not has_same_keys:
        return {"output": list(values)}
    columns: dict[str, list[object]] = {}
    for key in keys:
        columns[key] = [value[key] for value in values]
    return columns


def _encode_column(column: Sequence[object]) -> tuple[str, list[object]]:
    """Returns the datatype and data of a column; values of no datatype become JSON texts."""
    for datatype in _OUTPUT_DATATYPES:
        if _are_all(datatype, column):
            return datatype, list(column)
    return "BYTES", [json.dumps(value) for value in column]


def make_sample(inputs: Sequence[Mapping[str, Any]]) -> bytes:
    """Returns the item of inputs that a predictor describes, with a zero for each value."""
    tensors: list[_Input] = []
    for description in inputs:
        datatype = description["datatype"]
        sizes = [1]
        for size in description["shape"][1:]:
            sizes.append(max(1, size))
        values = [_ZEROS.get(datatype, 0)] * math.prod(sizes)
        tensors.append(_Input(description["name"], datatype, sizes, values))
    (body,) = _make_bodies(tensors, 1)
    return body


def describe_outputs(sample: Value) -> list[Mapping[str, object]]:
    """Returns the metadata of the outputs, taken from one value."""
    outputs: list[Mapping[str, object]] = []
    for name, column in _make_columns([sample]).items():
        datatype, _ = _encode_column(column)
        outputs.append(
            {
                "name": name,
                "datatype": datatype,
                "shape": [-1],
            }
        )
    return outputs
