"""The platform document: what is written is what is read, and what cannot be read says why."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import holdfast.platform.schema as schemas
from holdfast.contract.errors import InputError
from holdfast.platform import parse, read, reading
from tests import platforms

SCHEMA = Path(schemas.__file__).with_name("schema.json")
Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize("name", platforms.names())
def test_what_is_written_is_what_is_read(name: str) -> None:
    platform = platforms.load(name)
    assert parse(reading.text(platform), "text") == platform
    jsonschema.validate(json.loads(reading.text(platform)), schemas.schema())


def test_the_schema_beside_the_module_is_current() -> None:
    fix = "python -m holdfast.platform.schema > workloads/library/holdfast/platform/schema.json"
    assert json.loads(SCHEMA.read_text()) == schemas.schema(), fix


def test_every_field_is_documented() -> None:
    own = {"schema", "project_number", "region", "versions", "prices", "network", "security", "database", "serving"}
    described = {name for name, each in schemas.schema()["properties"].items() if "description" in each}
    assert set(schemas.schema()["properties"]) - described <= own


EDITS: dict[str, tuple[Edit, str, str]] = {
    "a newer schema": (lambda d: d.update(schema="holdfast.platform/2"), "schema", "pip install -U holdfast"),
    "an older schema": (lambda d: d.update(schema="holdfast.platform/0"), "schema", "raise the platform's pin"),
    "another schema": (lambda d: d.update(schema="holdfast.job/1"), "is no platform document", "infra describe"),
    "no schema": (lambda d: d.pop("schema"), "is no platform document", "infra describe"),
    "a field that is missing": (lambda d: d.pop("cluster"), "no cluster", "infra describe"),
    "a field that is unknown": (lambda d: d.update(color="red"), "unknown color", "infra describe"),
    "a number in quotes": (lambda d: d["pools"][0].update(max_nodes="3"), "pools[0].max_nodes", "infra describe"),
    "true for a number": (lambda d: d["pools"][0].update(max_nodes=True), "pools[0].max_nodes", "infra describe"),
    "a capacity that is unknown": (lambda d: d["pools"][0].update(capacity="spott"), "pools[0].capacity", "spot"),
    "null for an object": (lambda d: d.update(network=None), "network", "infra describe"),
    "a list for a map": (lambda d: d.update(buckets=["a"]), "buckets", "infra describe"),
}


@pytest.mark.parametrize("case", EDITS)
def test_a_document_that_was_edited_by_hand_is_refused_with_the_field(case: str) -> None:
    edit, text, fix = EDITS[case]
    body = json.loads(reading.text(platforms.load("example")))
    edit(body)
    with pytest.raises(InputError) as error:
        parse(json.dumps(body), "platform.json")
    assert text in str(error.value) and fix in str(error.value)
    assert error.value.what.startswith("platform.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"a"', "[" * 100_000, "x" * 1_000_001])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no platform document"):
        parse(text, "platform.json")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    for path in (tmp_path, tmp_path / "none.json", tmp_path / "bytes.json"):
        with pytest.raises(InputError, match="no platform document"):
            read(path)
