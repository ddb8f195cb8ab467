"""Where items come from, on real files; and where they must not come from."""

import json
import socket
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from holdfast.contract.errors import InputError
from holdfast.inference.sources import items_of

ROWS = [{"id": f"row-{n}", "text": f"text {n} \u2603"} for n in range(2500)]


def read(source: object) -> dict[str, bytes]:
    return {i.id: i.body for i in items_of("j", str(source), id_column="id", body_column="text")}


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_are_the_same_from_every_format(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    if ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    assert read(path) == {row["id"]: row["text"].encode() for row in ROWS}


def test_files_of_a_folder_are_read_in_the_order_of_paths(tmp_path: Path) -> None:
    for n in range(200):
        (tmp_path / f"{n % 7}").mkdir(exist_ok=True)
        (tmp_path / f"{n % 7}" / f"{n:03d}").write_text(str(n))
    found = list(read(tmp_path))
    assert found == sorted(found)
    assert len(found) == 200


@pytest.mark.parametrize(
    "scheme", ["http", "https", "ftp", "file", "s3", "gs", "HTTP", "gopher", "jar:http", "git+http"]
)
@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "127.1",
     "169.254.169.254", "metadata.google.internal"],
)  # fmt: skip
def test_nothing_is_fetched_from_a_url(monkeypatch: pytest.MonkeyPatch, scheme: str, host: str) -> None:
    asked = list[object]()
    monkeypatch.setattr(socket.socket, "connect", asked.append)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **_: asked.append(words))
    with pytest.raises(InputError, match="cannot be read"):
        read(f"{scheme}://{host}:80/rows.jsonl")
    assert asked == []
