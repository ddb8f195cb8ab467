"""The export of finished results as a Parquet file, whose columns are the keys of the results.

PostgreSQL says which types each key has, and sends the rows by COPY; Arrow parses them in batches.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
from psycopg import Connection
from psycopg.sql import SQL, Composable, Literal
from pyarrow import json as arrow_json
from pyarrow import parquet

from holdfast.support.errors import InputError

ITEM = "item"
MAX_COLUMNS = 1000
_BATCH_BYTES = 16 << 20

_DONE = """
FROM holdfast.result r JOIN holdfast.job j USING (job, fingerprint)
WHERE r.job = {job} AND r.status = 'done'
"""
_TYPES = """
SELECT pair.key, array_agg(DISTINCT CASE
    WHEN jsonb_typeof(pair.value) = 'number'
        THEN CASE
            WHEN pair.value::text ~ '^-?[0-9]{{1,15}}$' THEN 'integer'
            WHEN pair.value::text ~ '^-?[0-9]{{1,18}}$' THEN 'long'
            WHEN pair.value::text ~ '^-?[0-9]+$' THEN 'huge'
            ELSE 'number' END
    WHEN jsonb_typeof(pair.value) <> 'array' THEN jsonb_typeof(pair.value)
    WHEN jsonb_path_exists(pair.value, '$[*] ? (@.type() != "number")', '{{}}', true)
        THEN 'array'
    ELSE 'numbers' END)
FROM (SELECT r.value {done}) AS done, jsonb_each(done.value) AS pair
GROUP BY pair.key ORDER BY pair.key COLLATE "C" LIMIT {limit}
"""
_ROWS = """
COPY (SELECT {row} {done} ORDER BY r.item COLLATE "C") TO STDOUT
"""
_ARROW_TYPES = {
    "boolean": pyarrow.bool_(),
    "integer": pyarrow.int64(),
    "long": pyarrow.int64(),
    "number": pyarrow.float64(),
    "numbers": pyarrow.list_(pyarrow.float64()),
    "string": pyarrow.string(),
}


def export_parquet(connection: Connection, job: str, path: Path) -> int:
    """Writes `path` and returns the number of rows.

    A key whose values are of one type becomes a column of it, arrays of numbers a list; any other
    key becomes a column of JSON texts. Raises InputError for more than MAX_COLUMNS keys.
    """
    # The caller's reads opened a transaction, whose isolation cannot be changed any more.
    connection.commit()
    # One snapshot: a result that arrives in between could have another type.
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        types = _find_types(connection, job)
        fields = [(ITEM, pyarrow.string())]
        for key, kind in types.items():
            fields.append((_name_column(key, types), kind or pyarrow.string()))
        schema = pyarrow.schema(fields)
        count = 0
        with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
            for lines in _batches(connection, job, types):
                table = _parse(lines, schema)
                writer.write_table(table)
                count += table.num_rows
    return count


def _find_types(connection: Connection, job: str) -> dict[str, Any]:
    """Returns the type of each key; None: values of several types, or objects."""
    query = SQL(_TYPES).format(done=_select_done(job), limit=Literal(MAX_COLUMNS + 1))
    types: dict[str, Any] = {}
    for key, kinds_found in connection.execute(query):
        kinds = {*kinds_found} - {"null"}
        # Only what a double or 64 bits hold exactly.
        for mixed, kind in (({"integer", "number"}, "number"), ({"integer", "long"}, "long")):
            if kinds == mixed:
                kinds = {kind}
        types[key] = None
        if len(kinds) == 1:
            types[key] = _ARROW_TYPES.get(kinds.pop())
    if len(types) > MAX_COLUMNS:
        raise InputError(
            "the results have too many keys for a table",
            got=f"more than {MAX_COLUMNS}",
            allowed=f"at most {MAX_COLUMNS} different keys in all results of the job",
            fix="export to a file ending in .jsonl",
        )
    return types


def _select_done(job: str) -> Composable:
    return SQL(_DONE).format(job=Literal(job))


def _name_column(key: str, keys: dict[str, Any]) -> str:
    """Returns the column of a key; a key `item` is renamed with underscores, as in JSON lines."""
    name = key
    while name == ITEM or (name != key and name in keys):
        name = "_" + name
    return name


def _batches(connection: Connection, job: str, types: dict[str, Any]) -> Iterator[bytes]:
    """Yields whole lines of JSON, about _BATCH_BYTES each time."""
    copy = SQL(_ROWS).format(row=_make_row(types), done=_select_done(job))
    batch = bytearray()
    with connection.cursor() as cursor, cursor.copy(copy) as rows:
        for row in rows:
            # The only character of JSON that COPY escapes is the backslash.
            batch += bytes(row).replace(b"\\\\", b"\\")
            if len(batch) >= _BATCH_BYTES:
                yield bytes(batch)
                batch.clear()
    if batch:
        yield bytes(batch)


def _make_row(types: dict[str, Any]) -> Composable:
    """Returns the SQL expression of a row: the value without nulls, with texts for what has no
    type, and the id.
    """
    moved: list[Composable] = []
    added: list[Composable] = [SQL("jsonb_build_object('item', r.item)")]
    names: list[Composable] = []
    texts: list[Composable] = []
    for key, kind in types.items():
        name = _name_column(key, types)
        if name == key and kind is not None:
            continue
        moved.append(Literal(key))
        value = SQL("(r.value -> {key})").format(key=Literal(key))
        if kind is None:
            names.append(Literal(name))
            texts.append(SQL("NULLIF({value}, 'null')::text").format(value=value))
        else:
            pair = SQL("jsonb_build_object({name}, {value})")
            added.append(pair.format(name=Literal(name), value=value))
    if names:
        object_ = SQL("jsonb_object(ARRAY[{names}], ARRAY[{texts}])")
        added.append(object_.format(names=SQL(",").join(names), texts=SQL(",").join(texts)))
    # One level for all keys: a level for each would be too deep for a thousand.
    return SQL("((r.value - ARRAY[{moved}]::text[]) || {added})::text").format(
        moved=SQL(",").join(moved), added=SQL(" || ").join(added)
    )


def _parse(lines: bytes, schema: pyarrow.Schema) -> pyarrow.Table:
    options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    # A row must fit into a block.
    read = arrow_json.ReadOptions(block_size=len(lines) + 1)
    return arrow_json.read_json(io.BytesIO(lines), read_options=read, parse_options=options)
