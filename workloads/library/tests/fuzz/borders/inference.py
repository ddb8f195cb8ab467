"""Rows, items, the predictor's answers and requests over HTTP."""

import io
import json
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from holdfast.inference import items, sources
from holdfast.inference.errors import MalformedMessage, PredictorError, Refused
from holdfast.inference.predictor import pipe_protocol as frames
from holdfast.inference.server import tensors
from holdfast.inference.values import encode_value
from holdfast.support.errors import InputError
from workloads.library.tests.fuzz.campaign import Border
from workloads.library.tests.fuzz.mutations import draw_hostile, hostile_inputs

ITEM = items.encode(items.Item(job="job", id="an-id", body=b"some text"))
ROWS = b'{"id": 1, "text": "one"}\n{"id": "b", "text": "two", "more": [1, {"a": null}]}\n'
REPLY = {
    "values": [{"score": 1.5, "label": "x"}, {"score": 2}],
    "seconds": 0.25,
    "configuration": {"a": [1]},
}


def _enter_rows(suffix: str) -> Callable[[bytes], None]:
    def enter(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"rows{suffix}"
            path.write_bytes(data)
            for _ in sources.open_items(
                "job",
                str(path),
                id_column="id",
                body_column="text",
            ):
                pass

    return enter


@cache
def _parquet() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    columns = {
        "id": ["1", "2"],
        "text": ["one", "two"],
    }
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def _enter_reply(data: bytes) -> None:
    framed = bytearray(struct.pack(">I", len(data)) + data)
    reply = frames.pop_message(framed)
    values, _ = frames.parse_values(reply, 2)
    for value in values:
        encode_value(value)
    frames.normalize_configuration(reply.get("configuration") if reply else None)


INFER = {
    "id": "1",
    "inputs": [
        {
            "name": "text",
            "datatype": "BYTES",
            "shape": [2],
            "data": ["a", "b"],
        },
        {
            "name": "n",
            "datatype": "INT32",
            "shape": [2, 2],
            "data": [1, 2, 3, 4],
        },
    ],
}


BORDERS = {
    "batch messages": Border(
        make=hostile_inputs(json.loads(ITEM), ITEM),
        enter=items.decode,
        refusals=(MalformedMessage,),
    ),
    "rows of JSON": Border(
        make=hostile_inputs(ROWS),
        enter=_enter_rows(".jsonl"),
        refusals=(InputError,),
    ),
    "rows of Parquet": Border(
        make=lambda draw: draw_hostile((_parquet(),), draw),
        enter=_enter_rows(".parquet"),
        refusals=(InputError,),
    ),
    "predictor's replies": Border(
        make=hostile_inputs(REPLY),
        enter=_enter_reply,
        # The documented errors of pop_message and encode_value.
        refusals=(PredictorError, InputError, ValueError, RecursionError, EOFError),
    ),
    "HTTP requests": Border(
        make=hostile_inputs(INFER),
        enter=lambda data: tensors.parse(data, 64),
        refusals=(Refused,),
    ),
}
