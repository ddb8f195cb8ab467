"""Hostile ids, bodies, messages, values and rows; SQL only as literals."""

import ast
import json
import re
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg import Connection
from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool

from holdfast.contract.errors import InputError
from holdfast.contract.exit_codes import EXIT_FINDINGS
from holdfast.inference.enqueue import enqueue
from holdfast.inference.errors import ItemFault, MalformedMessage, redacted
from holdfast.inference.items import (
    MAX_BODY_BYTES,
    MAX_MESSAGE_BYTES,
    Item,
    checked_item,
    decode,
    encode,
    id_fault,
    job_fault,
)
from holdfast.inference.predictor.frames import configuration_of, values_of
from holdfast.inference.queue.postgres import PostgresQueue
from holdfast.inference.results import jobs
from holdfast.inference.results.connect import database_uri
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.inference.results.export import export
from holdfast.inference.results.postgres import PostgresResults
from holdfast.inference.values import MAX_NESTING, encode_value
from workloads.library.tests.inference.harness import CountingPredictor
from workloads.library.tests.inference.test_commands import run_command

ROOM = Path(__file__).parents[4] / "workloads" / "library" / "holdfast" / "inference"
HOSTILE = ("'; DROP TABLE holdfast.item;--", '"', "\\", "%s", "{}", "$1", "../../etc/passwd", "\u202e", "é" * 500)


def test_nesting_and_size_are_bounded_before_anything_is_parsed() -> None:
    with pytest.raises(MalformedMessage, match="allowed"):
        decode(b" " * (MAX_MESSAGE_BYTES + 1))
    with pytest.raises(MalformedMessage):
        decode(b"[" * 100_000)
    with pytest.raises(InputError, match="larger"):
        checked_item("j", "i", b"x" * (MAX_BODY_BYTES + 1), source="test")


@given(st.text(max_size=600), st.binary(max_size=100))
@example("a\x00b", b"")
@example("x" * 65_536, b"")
@example("\ud800", b"")
def test_what_the_grammar_admits_survives_the_wire(name: str, body: bytes) -> None:
    if id_fault(name):
        with pytest.raises(InputError):
            checked_item("job", name, body, source="test")
        return
    item = Item(job="job", id=name, body=body)
    assert decode(encode(item)) == item


@pytest.mark.parametrize("name", ["a\x00b", "\ud800", "a\nb", "", "x" * 65_536])
def test_no_id_that_postgresql_cannot_hold_passes(name: str) -> None:
    with pytest.raises(InputError):
        checked_item("job", name, b"", source="test")


def test_the_value_of_a_secret_variable_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "canary-of-the-hub")
    monkeypatch.setenv("COLOUR", "a-plain-value")
    assert redacted("401 for canary-of-the-hub, a-plain-value") == "401 for ***, a-plain-value"


@given(st.text(max_size=70))
def test_job_names_are_plain(name: str) -> None:
    if not job_fault(name):
        assert set(name) <= set(string.ascii_letters + string.digits + "._-")
        assert len(name) <= 63


@pytest.mark.parametrize(
    ("raw", "content"),
    [
        ("password=canary1", b""),
        ("Authorization: Bearer canary1", b""),
        ("could not reach postgresql://user:canary1@host/db", b""),
        ("invalid literal for int(): 'canary1'", b"a line with canary1 in it"),
    ],
)
def test_errors_are_shown_without_secrets_and_content(raw: str, content: bytes) -> None:
    text = redacted(raw, content=content)
    assert "canary1" not in text
    assert text


def test_a_password_in_an_unreadable_uri_is_not_repeated() -> None:
    with pytest.raises(InputError) as error:
        database_uri("postgresql://user:canary@[/db")
    assert "canary" not in str(error.value)


def test_sql_is_never_built_from_text() -> None:
    """Every first argument of execute() is a literal, a module constant or composed by psycopg.sql."""
    wrong: list[str] = []
    for path in sorted(ROOM.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)):
            if call.func.attr in ("execute", "executemany", "copy") and call.args and built(call.args[0], path.name):
                wrong.append(f"{path.name}:{call.lineno}")
    assert not wrong


def built(argument: ast.expr, file: str) -> bool:
    if isinstance(argument, ast.Constant | ast.Name):
        return False
    if isinstance(argument, ast.Call) and ast.unparse(argument.func).startswith(("sql.SQL", "cast")):
        # The cast is the migration file of this repository.
        return ast.unparse(argument.func) == "cast" and file != "schema.py"
    return True


def test_the_sql_rule_finds_what_it_is_for() -> None:
    for text in ('f"SELECT {x}"', '"SELECT %s" % x', '"SELECT " + x', '"{}".format(x)', "cast(str, x)"):
        assert built(ast.parse(text, mode="eval").body, "other.py")


@pytest.mark.process
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(max_size=60).filter(lambda t: not id_fault(t)), min_size=1, max_size=5, unique=True))
@example(list(HOSTILE))
def test_hostile_ids_are_stored_and_found_as_they_are(
    pool: ConnectionPool[Connection], connection: Connection, names: list[str]
) -> None:
    job = "hostile"
    with connection.transaction():
        connection.execute("DELETE FROM holdfast.queue WHERE job = %s", (job,))
        connection.execute("DELETE FROM holdfast.result WHERE job = %s", (job,))
        connection.execute("DELETE FROM holdfast.job WHERE job = %s", (job,))
    queue = PostgresQueue(pool, job, lease_s=60.0)
    enqueue(connection, queue, job, [Item(job=job, id=name, body=name.encode()) for name in names])
    assert sorted(lease.item.id for lease in queue.pull(100, 0.0) if lease.item) == sorted(names)
    fingerprint = jobs.pin(connection, job, CountingPredictor().configuration)
    results = PostgresResults(pool, job=job, fingerprint=fingerprint, worker="w", max_failures=3)
    claims = results.claim(names)
    value = json.dumps({"text": "'; DROP TABLE holdfast.result;--"})
    assert results.store({claim: value for claim in claims.values()}).done == set(names)


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.process
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VALUES)
@example("\x00")
@example("\\\x00")
@example("\\u0000")
@example("\ud800")
@example({"\udfff": 1})
@example(10**4000)
@example(1e308)
def test_what_is_accepted_of_a_predictor_can_be_stored(connection: Connection, value: object) -> None:
    """Or one odd value would fail the transaction of its whole micro-batch, on every worker."""
    try:
        text = encode_value({"value": value})
    except ValueError:
        assert "\x00" in str(value) or re.search(r"nan|inf|[\ud800-\udfff]|\\x00|\\ud[89a-f]", repr(value)), (
            "refused for nothing"
        )
        return
    row = connection.execute("SELECT %s::jsonb -> 'value'", (text,)).fetchone()
    assert row is not None
    if isinstance(value, str):
        assert row[0] == value


@pytest.mark.process
def test_the_deepest_value_that_is_accepted_can_be_stored(connection: Connection) -> None:
    text = encode_value({"value": nested(MAX_NESTING - 1)})
    assert connection.execute("SELECT %s::jsonb IS NOT NULL", (text,)).fetchone() == (True,)


@pytest.mark.parametrize("depth", [MAX_NESTING, 900, 100_000])
def test_nesting_that_a_database_cannot_bear_is_refused(depth: int) -> None:
    with pytest.raises((ValueError, RecursionError)):
        encode_value({"value": nested(depth)})


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
    server: EmbeddedPostgres, connection: Connection, job: str
) -> None:
    jobs.register(connection, job)
    hostile = ("\u202e[bold]a[/]\x1b[2J", "\x1b]0;title\x07 ##[error]")
    with connection.transaction():
        connection.execute("UPDATE holdfast.job SET total = 1 WHERE job = %s", (job,))
        connection.execute(
            "INSERT INTO holdfast.dead_letter (job, item, fingerprint, digest, reason, failures)"
            " VALUES (%s, %s, 'f', 'd', %s, 3)", (job, *hostile),
        )  # fmt: skip
    out = run_command("failures", job, uri=server.uri, code=EXIT_FINDINGS).stdout
    assert out.rstrip("\n").isprintable()
    assert "[bold]a[/]" in out and "##[" not in out
