"""Tests of the platform document: reading, writing, errors, and the comparison with a cluster."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import holdfast.platform.schema as schemas
from holdfast.clients.api import Api
from holdfast.commands import app as holdfast
from holdfast.platform import Platform, codec, parse, read
from holdfast.platform.cluster import PATH, choose, find_nearest, require_same_cluster
from holdfast.support.command_line import run_app
from holdfast.support.errors import InputError, Stopped
from holdfast.vocabulary.environment import ENV_PLATFORM
from holdfast.vocabulary.exit_codes import EXIT_STOPPED
from tests import platforms
from workloads.__main__ import app as workloads
from workloads.library.tests.jobs.api_server import serving

SCHEMA = Path(schemas.__file__).with_name("schema.json")
Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize("name", platforms.names())
def test_written_document_reads_back(name: str) -> None:
    platform = platforms.load(name)
    assert parse(codec.text(platform), "text") == platform
    jsonschema.validate(json.loads(codec.text(platform)), schemas.schema())


def test_schema_is_current_and_describes_every_field() -> None:
    fix = "python -m holdfast.platform.schema > workloads/library/holdfast/platform/schema.json"
    assert json.loads(SCHEMA.read_text()) == schemas.schema(), fix
    undescribed = {
        "schema",
        "project_number",
        "region",
        "versions",
        "prices",
        "network",
        "security",
        "database",
        "serving",
    }
    for name, field in schemas.schema()["properties"].items():
        assert "description" in field or name in undescribed


EDITS: dict[str, tuple[Edit, str, str]] = {
    "a newer schema": (
        lambda d: d.update(schema="holdfast.platform/2"),
        "schema",
        "pip install -U holdfast-gke",
    ),
    "an older schema": (
        lambda d: d.update(schema="holdfast.platform/0"),
        "schema",
        "ask the platform team",
    ),
    "another schema": (
        lambda d: d.update(schema="holdfast.job/1"),
        "is no platform document",
        "document of the cluster",
    ),
    "no schema": (lambda d: d.pop("schema"), "is no platform document", "document of the cluster"),
    "a field that is missing": (
        lambda d: d.pop("cluster"),
        "no cluster",
        "your platform team wrote",
    ),
    "a field that is unknown": (
        lambda d: d.update(color="red"),
        "unknown color",
        "your platform team wrote",
    ),
    "a number in quotes": (
        lambda d: d["pools"][0].update(max_nodes="3"),
        "pools[0].max_nodes",
        "your platform team wrote",
    ),
    "true for a number": (
        lambda d: d["pools"][0].update(max_nodes=True),
        "pools[0].max_nodes",
        "your platform team wrote",
    ),
    "a capacity that is unknown": (
        lambda d: d["pools"][0].update(capacity="spott"),
        "pools[0].capacity",
        "spot",
    ),
    "null for an object": (lambda d: d.update(network=None), "network", "your platform team wrote"),
    "a list for a map": (lambda d: d.update(buckets=["a"]), "buckets", "your platform team wrote"),
}


@pytest.mark.parametrize("case", EDITS)
def test_edited_document_is_rejected_with_the_field(case: str) -> None:
    edit, text, fix = EDITS[case]
    body = json.loads(codec.text(platforms.load("example")))
    edit(body)
    with pytest.raises(InputError) as error:
        parse(json.dumps(body), "platform.json")
    assert text in str(error.value)
    assert fix in str(error.value)
    assert error.value.what.startswith("platform.json")


def test_unreadable_document_is_rejected(tmp_path: Path) -> None:
    for text in ("", "{", "[]", "null", '"a"', "[" * 100_000, "x" * 1_000_001):
        with pytest.raises(InputError, match="no platform document"):
            parse(text, "platform.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    for path in (tmp_path, tmp_path / "none.json", tmp_path / "bytes.json"):
        with pytest.raises(InputError, match="no platform document"):
            read(path)


# A command that acts on a cluster first compares documents: in another platform's cluster it stops
# and changes nothing.

DEV = platforms.load("dev")
PROD = platforms.load("prod")
NODE = {
    "metadata": {"name": "n"},
    "spec": {"providerID": "gce://acme-other/us-central1-a/n"},
}


@contextmanager
def cluster(
    folder: Path,
    document: Platform | None,
    name: str = "c",
    nodes: tuple[object, ...] = (),
) -> Iterator[Path]:
    """Serves a cluster with this document; its kubeconfig names the cluster `name`."""
    lists = {"/api/v1/nodes": list(nodes)}
    with serving(lists, folder, platform=document) as kubeconfig:  # type: ignore[arg-type]
        body = json.loads(kubeconfig.read_text())
        body["clusters"][0]["name"] = name
        body["contexts"][0]["context"]["cluster"] = name
        kubeconfig.write_text(json.dumps(body))
        yield kubeconfig


def gke(platform: Platform) -> str:
    return f"gke_{platform.project}_{platform.region}_{platform.cluster}"


def test_cluster_document_wins_and_another_platform_stops(tmp_path: Path) -> None:
    with cluster(tmp_path, PROD) as kubeconfig:
        assert choose(Api(kubeconfig), None) == PROD
        assert choose(Api(kubeconfig), platforms.file("prod")) == PROD
    dev_file = platforms.file("dev")
    for document, folder in ((dev_file, None), (None, dev_file.parent / "samples")):
        with cluster(tmp_path, PROD) as kubeconfig, pytest.raises(Stopped) as stopped:
            choose(Api(kubeconfig), document, folder)
        assert str(PROD) in stopped.value.got
        assert str(DEV) in stopped.value.allowed
        assert "get-credentials" in stopped.value.fix
    old = replace(DEV, cluster="holdfast-old")
    with cluster(tmp_path, old) as kubeconfig, pytest.raises(Stopped):
        require_same_cluster(Api(kubeconfig), DEV)


@pytest.mark.parametrize(
    ("name", "nodes", "fact"),
    [
        (gke(PROD), (), PROD.cluster),
        ("gke_acme-other_us-central1_x", (), "acme-other/us-central1/x"),
        ("anything", (NODE,), "nodes of project acme-other"),
        # As europe-west1 and europe-west10, which are two regions.
        (f"gke_{DEV.project}_{DEV.region}0_{DEV.cluster}", (), f"{DEV.region}0"),
    ],
)
def test_cluster_without_document_is_compared_by_name_and_project(
    tmp_path: Path,
    name: str,
    nodes: tuple[object, ...],
    fact: str,
) -> None:
    with cluster(tmp_path, None, name, nodes) as kubeconfig, pytest.raises(Stopped) as stopped:
        require_same_cluster(Api(kubeconfig), DEV)
    assert fact in stopped.value.got


def test_own_cluster_without_document_allows_a_first_application(tmp_path: Path) -> None:
    with cluster(tmp_path, None, gke(DEV)) as kubeconfig:
        assert require_same_cluster(Api(kubeconfig), DEV) is False
        with pytest.raises(InputError, match="no platform document"):
            choose(Api(kubeconfig), None)
    with cluster(tmp_path, DEV, gke(DEV)) as kubeconfig:
        assert require_same_cluster(Api(kubeconfig), DEV) is True
    damaged = platforms.make_config_map(DEV) | {"data": {"platform.json": "{"}}
    with (
        serving({}, tmp_path, answers={PATH: damaged}) as kubeconfig,
        pytest.raises(InputError, match="ConfigMap"),
    ):
        choose(Api(kubeconfig), None)


def test_given_document_precedes_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENV_PLATFORM, raising=False)
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_nearest(None, below) is None
    platforms.write_document(DEV, tmp_path)
    assert find_nearest(None, below) == DEV
    monkeypatch.setenv(ENV_PLATFORM, str(platforms.file("prod")))
    assert find_nearest(None, below) == PROD
    assert find_nearest(platforms.file("example"), below) == platforms.load("example")


HAND = ["--platform", str(platforms.file("dev"))]
ACTING = {
    "submit": [
        "holdfast",
        "submit",
        str(platforms.file("dev").parent / "samples/training.yaml"),
        "--yes",
    ],
    "try": [
        "holdfast",
        "try",
        *HAND,
        "--yes",
    ],
    "list": ["holdfast", "list", *HAND],
    "logs": [
        "holdfast",
        "logs",
        "a",
        *HAND,
    ],
    "stop": [
        "holdfast",
        "stop",
        "a",
        "--yes",
        *HAND,
    ],
    "resume": [
        "holdfast",
        "resume",
        "a",
        *HAND,
    ],
    "shell": [
        "holdfast",
        "shell",
        "a",
        *HAND,
    ],
    "explain": [
        "holdfast",
        "explain",
        "a",
        *HAND,
    ],
    "explain --follow": [
        "holdfast",
        "explain",
        "a",
        "--follow",
        *HAND,
    ],
    "apply": ["workloads", "apply", "dev", "--yes"],
    "apply --operators": ["workloads", "apply", "dev", "--operators", "--yes"],
    "doctor": ["workloads", "doctor", "dev"],
}


@pytest.mark.parametrize("name", ACTING)
def test_acting_commands_stop_in_another_context(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *words = ACTING[name]
    with cluster(tmp_path, PROD, gke(PROD)) as kubeconfig, pytest.raises(SystemExit) as end:
        run_app(
            {"holdfast": holdfast, "workloads": workloads}[program],
            [*words, f"--kubeconfig={kubeconfig}"],
        )
    printed = capsys.readouterr().err
    assert end.value.code == EXIT_STOPPED, printed
    assert str(PROD) in printed
    assert str(DEV) in printed
    assert "nothing was changed" in printed
