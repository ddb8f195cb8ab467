"""Exports as Parquet and into a bucket: every value comes back, in a column of its type."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from google.cloud import storage
from pyarrow import parquet

from holdfast.inference.export_file import export
from holdfast.inference.results import parquet_export
from holdfast.support.errors import InputError
from workloads.library.tests.inference.harness import CountingPredictor, Harness, items

pytestmark = pytest.mark.process

VALUES: list[dict[str, Any]] = [
    {
        "text": 'a "quoted" \\ back\\n slash, \t tab, \n line, \u2603 and \U0001f600',
        "count": 1,
        "score": 0.5,
        "good": True,
        "embedding": [0.1, 2, -3e300],
        "mixed": 1,
        "object": {"a": [1, {"b": None}]},
        "item": "another",
        "long": 123456789012345678,
        "huge": 12345678901234567890123,
    },
    {
        "text": "",
        "count": -(10**15),
        "score": 2,
        "good": False,
        "embedding": [],
        "mixed": "1",
        "object": None,
        "item": None,
        "long": 5,
        "huge": 1,
    },
    {},
    {
        "text": None,
        "embedding": None,
        "score": 1e-300,
        "mixed": None,
    },
]


def store(harness: Harness, values: list[dict[str, Any]]) -> None:
    harness.enqueue(items(harness.job, len(values)))
    results = harness.results(CountingPredictor())
    for number, value in enumerate(values):
        (claim,) = results.claim([f"item-{number:05d}"]).values()
        results.store({claim: json.dumps(value)})


def test_each_key_is_a_typed_column(harness: Harness, tmp_path: Path) -> None:
    store(harness, VALUES)
    out = tmp_path / "new" / "o.parquet"
    assert export(harness.connection, harness.job, str(out)) == len(VALUES)
    table = parquet.read_table(out)
    types = {}
    for name in table.column_names:
        types[name] = str(table.schema.field(name).type)
    assert types == {
        "item": "string",
        "_item": "string",
        "count": "int64",
        "embedding": "list<element: double>",
        "good": "bool",
        "huge": "string",
        "long": "int64",
        "mixed": "string",
        "object": "string",
        "score": "double",
        "text": "string",
    }
    as_text = {"mixed", "object", "huge"}
    for number, (row, value) in enumerate(zip(table.to_pylist(), VALUES, strict=True)):
        assert row.pop("item") == f"item-{number:05d}"
        row["item"] = row.pop("_item")
        for name, content in row.items():
            if name in as_text and content is not None:
                content = json.loads(content)
            assert content == value.get(name), name


def test_rows_keep_their_order_across_batches(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_export, "_BATCH_BYTES", 200)
    store(harness, [{"n": n, "text": "x" * n} for n in range(60)])
    export(harness.connection, harness.job, str(tmp_path / "o.parquet"))
    table = parquet.read_table(tmp_path / "o.parquet")
    assert table["n"].to_pylist() == [*range(60)]


def test_a_job_without_results_is_an_empty_table(harness: Harness, tmp_path: Path) -> None:
    harness.enqueue(items(harness.job, 1))
    assert export(harness.connection, harness.job, str(tmp_path / "o.parquet")) == 0
    assert parquet.read_table(tmp_path / "o.parquet").column_names == ["item"]


def test_too_many_keys_are_refused_and_leave_no_file(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_export, "MAX_COLUMNS", 3)
    store(harness, [{f"key-{n}": 1} for n in range(4)])
    with pytest.raises(InputError, match=r"\.jsonl"):
        export(harness.connection, harness.job, str(tmp_path / "o.parquet"))
    assert [*tmp_path.glob("o.*")] == []


def test_as_many_keys_as_allowed_may_have_several_types(harness: Harness, tmp_path: Path) -> None:
    value = {f"key-{n}": {"n": n} for n in range(parquet_export.MAX_COLUMNS)}
    store(harness, [value, {"key-0": 1, "key-1": None}])
    assert export(harness.connection, harness.job, str(tmp_path / "o.parquet")) == 2
    first, second = parquet.read_table(tmp_path / "o.parquet").to_pylist()
    assert first.pop("item") == "item-00000"
    assert {key: json.loads(text) for key, text in first.items()} == value
    assert second["key-0"] == "1"
    assert second["key-1"] is None


def test_large_results_become_lines_in_bounded_memory(harness: Harness, tmp_path: Path) -> None:
    store(harness, [{"text": "x" * 50_000}] * 400)
    tracemalloc.start()
    try:
        assert export(harness.connection, harness.job, str(tmp_path / "o.jsonl")) == 400
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 15_000_000


@pytest.mark.parametrize("out", ["", ".", "/"])
def test_an_export_without_a_file_name_is_bad_input(harness: Harness, out: str) -> None:
    harness.enqueue(items(harness.job, 1))
    with pytest.raises(InputError, match="has no name"):
        export(harness.connection, harness.job, out)


def test_an_export_to_a_bucket_replaces_nothing(
    harness: Harness, bucket: str, tmp_path: Path
) -> None:
    store(harness, VALUES[:1])
    for name in ("o.parquet", "o.jsonl"):
        url = f"gs://{bucket}/results of mine/{name}"
        assert export(harness.connection, harness.job, url) == 1
        blob = storage.Client().bucket(bucket).blob(f"results of mine/{name}")
        (tmp_path / name).write_bytes(blob.download_as_bytes())
        with pytest.raises(InputError, match="would replace"):
            export(harness.connection, harness.job, url)
    assert parquet.read_table(tmp_path / "o.parquet")["count"].to_pylist() == [1]
    assert json.loads((tmp_path / "o.jsonl").read_text())["count"] == 1
    for url in (f"gs://{bucket}", f"gs://{bucket}/", "gs:///x.parquet", f"gs://{bucket}/a/"):
        with pytest.raises(InputError, match="has no name"):
            export(harness.connection, harness.job, url)
