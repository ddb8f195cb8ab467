"""Tests of item sources on real files: their items, and bad input in bounded memory."""

import json
import resource
import socket
from contextlib import suppress
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from holdfast.inference.sources import MAX_ROW_CHARS, open_items
from holdfast.support.errors import InputError

ROWS = [{"id": f"row-{n}", "text": f"text {n} \u2603"} for n in range(2500)]


def load(source: object, *, body: str = "text") -> dict[str, bytes]:
    items = open_items("j", str(source), id_column="id", body_column=body)
    return {item.id: item.body for item in items}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def test_rows_are_the_same_from_every_format(tmp_path: Path, rows: Path) -> None:
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    bodies = {}
    for row in ROWS:
        bodies[row["id"]] = row["text"].encode()
    assert load(rows) == bodies
    assert load(tmp_path / "rows.parquet") == bodies


def test_files_in_a_folder_are_sorted_and_links_are_skipped(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    secret = tmp_path / "secret"
    secret.write_text("canary")
    for n in range(200):
        subfolder = folder / f"{n % 7}"
        subfolder.mkdir(parents=True, exist_ok=True)
        (subfolder / f"{n:03d}").write_text(str(n))
    (folder / "link").symlink_to(secret)
    (folder / "linked").symlink_to(tmp_path)
    names = list(load(folder))
    assert names == sorted(names)
    assert len(names) == 200


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": null, "text": "x"}', "an item has no id"),
        ('{"id": true, "text": "x"}', "an item has no id"),
        ('{"id": [1], "text": "x"}', "an item has no id"),
        ('{"id": {"a": 1}, "text": "x"}', "an item has no id"),
        ('{"id": NaN, "text": "x"}', "an item has no id"),
        ('{"id": 1, "text": null}', "no content"),
        ('{"id": 1}', "no such column"),
        ('{"id": 1, "text": ' + "[" * 200_000 + "}", "cannot be read"),
        ("[" * 1_000_000, "cannot be read"),
        ('{"id": ' + "9" * 5000 + "}", "cannot be read"),
        ('{"id": 1, "text": x}', "line 2: Expecting value, at column 19"),
    ],
    ids=lambda text: text[:25],
)
def test_a_row_that_is_no_item_is_bad_input(rows: Path, line: str, message: str) -> None:
    rows.write_text(json.dumps({"id": 7, "text": "x"}) + "\n" + line + "\n")
    with pytest.raises(InputError, match=message):
        load(rows)


@pytest.mark.parametrize(
    ("type_", "value"),
    [(pyarrow.timestamp("us"), 2**62), (pyarrow.timestamp("us", tz="No/Zone"), 1)],
    ids=str,
)
def test_a_time_that_python_cannot_hold_is_bad_input(
    tmp_path: Path, type_: pyarrow.DataType, value: int
) -> None:
    times = pyarrow.array([value], pyarrow.int64()).cast(type_)
    table = pyarrow.table({"id": ["a"], "text": ["x"], "at": times})
    parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(InputError, match=r"rows\.parquet"):
        load(tmp_path / "rows.parquet")


def test_an_integer_beyond_every_float_is_an_id(rows: Path) -> None:
    digits = "9" * 400
    rows.write_text(f'{{"id": {digits}, "text": "x"}}\n')
    assert load(rows) == {digits: b"x"}


@pytest.mark.parametrize("depth", [700, 2_000])
def test_a_deeply_nested_row_is_an_item_or_bad_input(rows: Path, depth: int) -> None:
    """Python parses deeper JSON than it writes, depending on its version: 700 levels in 3.11."""
    rows.write_text('{"id": 1, "text": ' + "[" * depth + "]" * depth + "}\n")
    with suppress(InputError):
        assert [*load(rows, body="")] == ["1"]


def test_a_300_mb_line_is_rejected_in_bounded_memory(rows: Path) -> None:
    with rows.open("wb") as file:
        file.seek(300_000_000)  # sparse: zeros without a line's end
        file.write(b"\n")
    start_kib = measure_peak_kib()
    with pytest.raises(InputError, match=f"{MAX_ROW_CHARS}"):
        load(rows)
    assert measure_peak_kib() - start_kib < 100_000


def test_a_tables_large_rows_are_read_in_bounded_memory(tmp_path: Path) -> None:
    """The container that loads a job's items has 2 GiB, and an item may have 4 MiB."""
    schema = pyarrow.schema([("id", pyarrow.string()), ("text", pyarrow.binary())])
    body = b"x" * 1_000_000
    with parquet.ParquetWriter(tmp_path / "rows.parquet", schema) as writer:
        for n in range(300):
            writer.write_table(pyarrow.table({"id": [str(n)], "text": [body]}, schema=schema))
    start_kib = measure_peak_kib()
    items = open_items(
        "j",
        str(tmp_path / "rows.parquet"),
        id_column="id",
        body_column="text",
    )
    assert sum(len(item.body) for item in items) == 300 * len(body)
    assert measure_peak_kib() - start_kib < 250_000


def measure_peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def put(bucket: str, name: str, content: bytes) -> None:
    from google.cloud import storage

    storage.Client().bucket(bucket).blob(name).upload_from_string(content)


def test_pattern_takes_rows_from_all_matching_files(tmp_path: Path, rows: Path) -> None:
    for number in range(3):
        row = {"id": f"row-{number}", "text": f"text {number}"}
        (tmp_path / f"part-{number}.jsonl").write_text(json.dumps(row))
    below = tmp_path / "below"
    below.mkdir()
    target = below / "part-9.jsonl"
    target.write_text("not taken")
    (tmp_path / "part-8.jsonl").symlink_to(target)
    assert load(tmp_path / "part-*.jsonl") == {
        "row-0": b"text 0",
        "row-1": b"text 1",
        "row-2": b"text 2",
    }
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path / "*.parquet")
    with pytest.raises(InputError, match="cannot be read"):
        load("http://127.0.0.1/*.jsonl")


@pytest.mark.process
def test_a_bucket_gives_the_items_that_a_disk_gives(
    tmp_path: Path, rows: Path, bucket: str
) -> None:
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    for path in (rows, tmp_path / "rows.parquet"):
        put(bucket, f"in/{path.name}", path.read_bytes())
        assert load(f"gs://{bucket}/in/{path.name}") == load(path)
        assert load(f"gs://{bucket}/in/*{path.suffix}") == load(path)


@pytest.mark.process
def test_bucket_folder_may_have_any_object_names(bucket: str) -> None:
    files = {
        "a b (1).txt": b"1",
        "below/\u00e9\u2603.txt": b"2",
        ".hidden": b"",
        "x": b"4",
    }
    for name, content in files.items():
        put(bucket, f"docs/{name}", content)
    put(bucket, "docs/folder/", b"")
    put(bucket, "docs-of-others/secret", b"canary")
    assert load(f"gs://{bucket}/docs") == files
    assert load(f"gs://{bucket}/docs/") == files


@pytest.mark.process
def test_missing_objects_and_buckets_are_bad_input(bucket: str) -> None:
    for url in (f"gs://{bucket}/none", f"gs://{bucket}/none.jsonl", f"gs://{bucket}/*.parquet"):
        with pytest.raises(InputError, match="the source cannot be read"):
            load(url)
    for url in ("gs://no-such-bucket-here/a", "gs://no-such-bucket-here/a.jsonl", "gs://"):
        with pytest.raises(InputError, match=r"cannot be (used|read)|unknown form"):
            load(url)
    put(bucket, "large/big.bin", b"x" * (4 * 1024 * 1024 + 1))
    with pytest.raises(InputError, match="larger than a message"):
        load(f"gs://{bucket}/large")
    put(bucket, "broken.parquet", b"PAR1 and no more")
    with pytest.raises(InputError, match=r"the file of rows cannot be read.*broken\.parquet"):
        load(f"gs://{bucket}/broken.parquet")


@pytest.mark.parametrize(
    "url", ["http://metadata.google.internal", "HTTP://127.0.0.1", "s3://bucket", "file:///etc"]
)
def test_nothing_is_fetched_from_a_url(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(socket.socket, "connect", pytest.fail)
    monkeypatch.setattr(socket, "getaddrinfo", pytest.fail)
    with pytest.raises(InputError, match="cannot be read"):
        load(f"{url}/rows.jsonl")
