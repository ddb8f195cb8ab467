"""Tests of hostile ids, bodies, messages, values and rows, and of SQL as literals only."""

import itertools
import json
import re
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg import Connection

from holdfast.inference.errors import ItemFault, MalformedMessage, redact
from holdfast.inference.export_file import export
from holdfast.inference.items import (
    MAX_BODY_BYTES,
    MAX_MESSAGE_BYTES,
    Item,
    decode,
    encode,
    find_id_fault,
    find_job_fault,
    make_item,
)
from holdfast.inference.predictor.pipe_protocol import normalize_configuration, parse_values
from holdfast.inference.results import jobs
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.inference.values import MAX_NESTING, encode_value
from holdfast.support.errors import InputError
from holdfast.vocabulary.exit_codes import EXIT_FINDINGS
from workloads.library.tests.inference.harness import CountingPredictor, Harness, items
from workloads.library.tests.inference.test_commands import run_command

ROOM = Path(__file__).parents[4] / "workloads" / "library" / "holdfast" / "inference"
HOSTILE = (
    "'; DROP TABLE holdfast.item;--",
    '"',
    "\\",
    "%s",
    "{}",
    "$1",
    "../../etc/passwd",
    "\u202e",
    "é" * 500,
)
_examples = itertools.count()
# A list here replaces that of the profile, by which a busy machine may be slow to draw examples.
SUPPRESSED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def test_nesting_and_size_are_bounded_before_anything_is_parsed() -> None:
    with pytest.raises(MalformedMessage, match="allowed"):
        decode(b" " * (MAX_MESSAGE_BYTES + 1))
    with pytest.raises(MalformedMessage):
        decode(b"[" * 100_000)
    with pytest.raises(InputError, match="larger"):
        make_item("j", "i", b"x" * (MAX_BODY_BYTES + 1), source="test")


IDS = st.text(max_size=512).filter(lambda text: not find_id_fault(text))


@given(IDS, st.binary(max_size=100))
def test_a_valid_item_survives_encoding(name: str, body: bytes) -> None:
    item = Item(job="job", id=name, body=body)
    assert decode(encode(item)) == item


@pytest.mark.parametrize("name", ["a\x00b", "\ud800", "a\nb", "", "x" * 65_536])
def test_no_id_that_postgresql_cannot_hold_passes(name: str) -> None:
    with pytest.raises(InputError):
        make_item("job", name, b"", source="test")


@given(st.text(max_size=70))
def test_job_names_are_plain(name: str) -> None:
    if not find_job_fault(name):
        assert set(name) <= set(string.ascii_letters + string.digits + "._-")
        assert len(name) <= 63


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("password=canary", "password=***"),
        ("Authorization: Bearer canary", "Authorization: ***"),
        (
            "could not reach postgresql://user:canary@host/db",
            "could not reach postgresql://user:***@host/db",
        ),
        ("invalid literal for int(): 'a sentence'", "invalid literal for int(): 'a ***'"),
        ("401 for canary-of-the-hub, a-plain-value", "401 for ***, a-plain-value"),
    ],
)
def test_errors_are_shown_without_secrets_and_content(
    monkeypatch: pytest.MonkeyPatch, raw: str, shown: str
) -> None:
    monkeypatch.setenv("SOME_TOKEN", "canary-of-the-hub")
    monkeypatch.setenv("COLOR", "a-plain-value")
    assert redact(raw, content=b"of a sentence") == shown


def test_sql_is_never_built_from_text() -> None:
    """psycopg's types allow only literals: the type checker finds any other text without a cast."""
    casts: list[str] = []
    for path in ROOM.rglob("*.py"):
        if re.search(r'cast\("?LiteralString', path.read_text()):
            casts.append(path.name)
    assert casts == ["schema.py"], "the files of this repository"


@pytest.mark.process
@settings(max_examples=20, suppress_health_check=SUPPRESSED)
@given(st.lists(IDS, min_size=1, max_size=5, unique=True))
@example(list(HOSTILE))
def test_hostile_ids_are_stored_unchanged(harness: Harness, names: list[str]) -> None:
    harness = replace(
        harness,
        job=f"{harness.job}-{next(_examples)}",
    )
    harness.enqueue([Item(job=harness.job, id=name, body=name.encode()) for name in names])
    leases = harness.queue.pull(100, 0.0)
    assert {lease.item.id for lease in leases if lease.item} == {*names}
    results = harness.results(CountingPredictor())
    claims = results.claim(names).values()
    value = json.dumps({"text": "'; DROP TABLE holdfast.result;--"})
    assert results.store(dict.fromkeys(claims, value)) == (set(names), set())


def nest(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


KEYS = st.text(max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.process
@settings(max_examples=50, suppress_health_check=SUPPRESSED)
@given(VALUES)
@example("\x00")
@example("\\\x00")
@example("\\u0000")
@example("\ud800")
@example({"\udfff": 1})
@example(10**4000)
@example(1e308)
def test_an_accepted_value_can_be_stored(connection: Connection, value: object) -> None:
    """Otherwise one value would fail the transaction of its micro-batch, on every worker."""
    try:
        text = encode_value({"value": value})
    except ValueError:
        odd = r"nan|inf|[\ud800-\udfff]|\\x00|\\ud[89a-f]"
        assert "\x00" in str(value) or re.search(odd, repr(value)), "rejected without a reason"
        return
    ((stored,),) = connection.execute("SELECT %s::jsonb -> 'value'", (text,))
    assert stored == value or not isinstance(value, str)


@pytest.mark.process
def test_the_deepest_accepted_value_can_be_stored(connection: Connection) -> None:
    text = encode_value({"value": nest(MAX_NESTING - 1)})
    row = connection.execute("SELECT %s::jsonb IS NOT NULL", (text,)).fetchone()
    assert row == (True,)


@pytest.mark.parametrize("depth", [MAX_NESTING, 900, 100_000])
def test_nesting_that_a_database_cannot_store_is_rejected(depth: int) -> None:
    with pytest.raises((ValueError, RecursionError)):
        encode_value({"value": nest(depth)})


@pytest.mark.parametrize(
    "value",
    [
        [1],
        "text",
        None,
        [["a", 1]],
    ],
)
def test_a_value_that_is_no_object_is_the_items_failure(value: Any) -> None:
    with pytest.raises(ItemFault):
        parse_values({"values": [value], "seconds": 0.0}, 1)


@pytest.mark.parametrize(
    "configuration",
    [
        [1],
        "text",
        None,
        {1: 2},
        {"a": float("nan")},
        {"a": {1, 2}},
        {"a": "x" * 70_000},
    ],
)
def test_a_configuration_that_is_no_plain_object_is_bad_input(configuration: Any) -> None:
    with pytest.raises(InputError, match="configuration"):
        normalize_configuration(configuration)


@pytest.mark.process
def test_an_export_keeps_the_id_and_all_keys(harness: Harness, tmp_path: Path) -> None:
    harness.enqueue(items(harness.job, 1))
    results = harness.results(CountingPredictor())
    (claim,) = results.claim(["item-00000"]).values()
    value = {
        "item": "another",
        "_item": 1,
        "score": 2,
    }
    results.store({claim: json.dumps(value)})
    export(
        harness.connection,
        harness.job,
        str(tmp_path / "o.jsonl"),
    )
    row = json.loads((tmp_path / "o.jsonl").read_text())
    assert row == {
        "item": "item-00000",
        "__item": "another",
        "_item": 1,
        "score": 2,
    }


@pytest.mark.process
def test_a_worker_with_another_configuration_is_rejected(connection: Connection, job: str) -> None:
    jobs.register(connection, job)
    for _ in range(2):
        jobs.pin(connection, job, {"version": 1})
    with pytest.raises(InputError, match=r"version=2 \(job: 1\)"):
        jobs.pin(connection, job, {"version": 2})


@pytest.mark.process
def test_item_and_error_names_cannot_control_the_terminal(
    server: EmbeddedPostgres, connection: Connection, job: str
) -> None:
    jobs.register(connection, job)
    hostile = ("\u202e[bold]a[/]\x1b[2J", "\x1b]0;title\x07 ##[error]")
    with connection.transaction():
        connection.execute(
            "INSERT INTO holdfast.dead_letter (job, item, fingerprint, digest, reason, failures)"
            " VALUES (%s, %s, 'f', 'd', %s, 3)",
            (job, *hostile),
        )
    listing = run_command("failures", job, uri=server.uri, code=EXIT_FINDINGS).stdout
    assert listing.rstrip("\n").isprintable()
    assert "[bold]a[/]" in listing
    assert "##[" not in listing
