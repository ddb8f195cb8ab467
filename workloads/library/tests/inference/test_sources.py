"""Where items come from, on real files: what is read of them; bad input, and never a traceback or a
full memory.
"""

import json
import resource
import socket
from contextlib import suppress
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from holdfast.inference.sources import MAX_ROW_CHARS, items_of
from holdfast.support.errors import InputError

ROWS = [{"id": f"row-{n}", "text": f"text {n} \u2603"} for n in range(2500)]


def read(source: object, *, body: str = "text") -> dict[str, bytes]:
    return {i.id: i.body for i in items_of("j", str(source), id_column="id", body_column=body)}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def test_rows_are_the_same_from_every_format(tmp_path: Path, rows: Path) -> None:
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    assert (
        read(rows)
        == read(tmp_path / "rows.parquet")
        == {row["id"]: row["text"].encode() for row in ROWS}
    )


def test_files_of_a_folder_are_read_in_the_order_of_paths_and_no_link_is_followed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "folder"
    secret = tmp_path / "secret"
    secret.write_text("canary")
    for n in range(200):
        (folder / f"{n % 7}").mkdir(parents=True, exist_ok=True)
        (folder / f"{n % 7}" / f"{n:03d}").write_text(str(n))
    (folder / "link").symlink_to(secret)
    (folder / "linked").symlink_to(tmp_path)
    found = list(read(folder))
    assert found == sorted(found)
    assert len(found) == 200


@pytest.mark.parametrize(
    ("line", "why"),
    [
        *(
            (f'{{"id": {bad}, "text": "x"}}', "an item has no id")
            for bad in ("null", "true", "[1]", '{"a": 1}', "NaN")
        ),
        ('{"id": 1, "text": null}', "no content"),
        ('{"id": 1}', "no such column"),
        ('{"id": 1, "text": ' + "[" * 200_000 + "}", "cannot be read"),
        ("[" * 1_000_000, "cannot be read"),
        ('{"id": ' + "9" * 5000 + "}", "cannot be read"),
    ],
    ids=lambda text: text[:25],
)
def test_a_row_that_is_no_item_is_bad_input(rows: Path, line: str, why: str) -> None:
    rows.write_text(json.dumps({"id": 7, "text": "x"}) + "\n" + line + "\n")
    with pytest.raises(InputError, match=why):
        read(rows)


@pytest.mark.parametrize("depth", [700, 2_000])
def test_a_row_that_can_be_read_and_not_written_again_is_an_item_or_bad_input(
    rows: Path, depth: int
) -> None:
    """How much deeper Python reads JSON than it writes it depends on its version: 700 is such a
    depth in 3.11.
    """
    rows.write_text('{"id": 1, "text": ' + "[" * depth + "]" * depth + "}\n")
    with suppress(InputError):
        assert [*read(rows, body="")] == ["1"]


def test_a_line_of_300_mb_is_refused_before_it_is_read_whole(rows: Path) -> None:
    with rows.open("wb") as file:
        file.seek(300_000_000)  # sparse: zeros without a line's end
        file.write(b"\n")
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=f"{MAX_ROW_CHARS}"):
        read(rows)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100_000


@pytest.mark.parametrize(
    "url", ["http://metadata.google.internal", "HTTP://127.0.0.1", "gs://bucket", "file:///etc"]
)
def test_nothing_is_fetched_from_a_url(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(socket.socket, "connect", pytest.fail)
    monkeypatch.setattr(socket, "getaddrinfo", pytest.fail)
    with pytest.raises(InputError, match="cannot be read"):
        read(f"{url}/rows.jsonl")
