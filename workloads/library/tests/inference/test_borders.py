"""Odd files, odd predictors, odd rows: bad input of one item or one file, never a traceback, a hang or a full memory."""

import io
import json
import resource
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest
from psycopg import Connection
from psycopg.types.json import Jsonb

from holdfast.commands import app
from holdfast.contract.errors import InputError
from holdfast.inference.errors import ItemFault
from holdfast.inference.predictor.frames import configuration_of, values_of
from holdfast.inference.results import jobs
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.inference.results.export import export
from holdfast.inference.sources import MAX_ROW_CHARS, items_of
from holdfast.inference.values import encode_value


def read(path: Path, *, body: str = "text") -> list[str]:
    return [item.id for item in items_of("j", str(path), id_column="id", body_column=body)]


@pytest.mark.parametrize("bad", [None, True, [1], {"a": 1}, float("nan")])
def test_an_id_is_text_or_a_number(tmp_path: Path, bad: object) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"id": 7, "text": "x"}) + "\n" + json.dumps({"id": bad, "text": "x"}) + "\n")
    with pytest.raises(InputError, match=r"row 2|cannot be read"):
        read(path)


def test_a_row_without_content_is_not_the_text_none(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": 1, "text": null}\n')
    with pytest.raises(InputError, match="no content"):
        read(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    "line",
    [
        '{"id": 1, "text": ' + "[" * 200_000 + "}",
        "[" * 1_000_000,
        '{"id": ' + "9" * 5000 + "}",
    ],
)
def test_a_deep_or_endless_row_is_bad_input(tmp_path: Path, line: str) -> None:
    (tmp_path / "rows.jsonl").write_text(line + "\n")
    with pytest.raises(InputError):
        read(tmp_path / "rows.jsonl")


@pytest.mark.parametrize("depth", [700, 2_000])
def test_a_row_that_can_be_read_and_not_written_again_is_an_item_or_bad_input(tmp_path: Path, depth: int) -> None:
    """How much deeper Python reads JSON than it writes it depends on its version: 700 is such a depth in 3.11."""
    (tmp_path / "rows.jsonl").write_text('{"id": 1, "text": ' + "[" * depth + "]" * depth + "}\n")
    with suppress(InputError):
        assert read(tmp_path / "rows.jsonl", body="") == ["1"]


def test_a_line_of_300_mb_is_refused_before_it_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as file:
        file.seek(300_000_000)  # sparse: zeros without a line's end
        file.write(b"\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=f"{MAX_ROW_CHARS}"):
        read(path)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 100_000


@pytest.mark.parametrize("value", [[1], "text", None, [("a", 1)]])
def test_a_value_that_is_no_object_is_the_items_failure(value: Any) -> None:
    with pytest.raises(ValueError, match="object"):
        encode_value(value)
    with pytest.raises(ItemFault):
        values_of({"values": [value], "seconds": 0.0}, 1)


@pytest.mark.parametrize("bad", [[1], "text", None, {1: 2}, {"a": float("nan")}, {"a": {1, 2}}, {"a": "x" * 70_000}])
def test_a_configuration_that_is_no_plain_object_is_bad_input(bad: Any) -> None:
    with pytest.raises(InputError, match="configuration"):
        configuration_of(bad)


@pytest.mark.process
def test_rows_that_somebody_else_wrote_are_exported_and_refused_without_a_traceback(
    connection: Connection, job: str, tmp_path: Path
) -> None:
    jobs.register(connection, job)
    values: list[Any] = [[1, 2], "text", None, {"item": "another", "_item": 1, "score": 2}]
    with connection.transaction():
        connection.execute("UPDATE holdfast.job SET fingerprint = 'f', configuration = '[1]' WHERE job = %s", (job,))
        for n, value in enumerate(values):
            connection.execute(
                "INSERT INTO holdfast.result (job, item, fingerprint, status, fence, worker, value)"
                " VALUES (%s, %s, 'f', 'done', 0, 'w', %s)", (job, f"i{n}", Jsonb(value)),
            )  # fmt: skip
    export(connection, job, str(tmp_path / "o.jsonl"))
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert rows == [
        {"item": "i0", "value": [1, 2]},
        {"item": "i1", "value": "text"},
        {"item": "i2", "value": None},
        {"item": "i3", "__item": "another", "_item": 1, "score": 2},
    ], "the id is the item's, and nothing of a predictor's is lost"
    assert jobs.pinned_configuration(connection, job) == {}
    with pytest.raises(InputError, match="configuration differs"):
        jobs.pin(connection, job, {"version": 1})


@pytest.mark.process
def test_what_an_item_or_an_error_is_called_does_not_speak_to_the_terminal(
    server: EmbeddedPostgres, connection: Connection, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.register(connection, job)
    hostile = ("\u202e[bold]a[/]\x1b[2J", "\x1b]0;title\x07 ##[error]")
    with connection.transaction():
        connection.execute("UPDATE holdfast.job SET total = 1 WHERE job = %s", (job,))
        connection.execute(
            "INSERT INTO holdfast.dead_letter (job, item, fingerprint, digest, reason, failures)"
            " VALUES (%s, %s, 'f', 'd', %s, 3)", (job, *hostile),
        )  # fmt: skip
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", server.uri)
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit):
        app(["batch", "failures", job])
    assert out.getvalue().rstrip("\n").isprintable()
    assert "[bold]a[/]" in out.getvalue() and "##[" not in out.getvalue()
