"""The file of a user's job: its form, its schema, and what is refused."""

import json
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from holdfast.commands import app
from holdfast.jobs.file import file_text
from holdfast.jobs.file.job_file import JobSpec
from holdfast.support.errors import InputError
from tests.platforms import file as platform_file

IMAGE = f"us-docker.pkg.dev/p/r/train@sha256:{'a' * 64}"
ROOT = Path(__file__).parents[4]


def own(**fields: Any) -> JobSpec:
    required = {
        "name": "my-run",
        "environment": "example",
        "image": IMAGE,
        "command": ("python", "train.py"),
    }
    return JobSpec(**required | {"gpus": "1xl4"} | fields)


def json_schema() -> str:
    """Returns the schema of the file, which is committed for editors."""
    properties: dict[str, Any] = {"schema": {"const": file_text.SCHEMA}}
    for field in fields(JobSpec):
        default = {} if field.default is MISSING else {"default": field.default}
        properties[field.name] = (
            field.metadata["schema"] | {"description": field.metadata["about"]} | default
        )
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A job",
        "type": "object",
    }
    needed = ["schema", "name", "environment", "image", "command"]
    body = head | {
        "additionalProperties": False,
        "required": needed,
        "properties": properties,
    }
    return json.dumps(body, indent=2) + "\n"


def test_written_file_reads_as_the_same_job_and_fits_its_schema() -> None:
    job = own(
        nodes=2,
        env={"A": "yes", "B": "3"},
        secrets={"HF_TOKEN": "hf/3"},
        claims={"/mnt/models": "models"},
        command=("python", "-c", "print(1)\nprint('a: #b')", "--lr", "3e-4"),
        resumes=False,
        data="gs://bucket/x",
    )
    body = YAML(typ="safe").load(file_text.dump(job))
    assert file_text.parse(body, "x") == job
    schema = json.loads((ROOT / file_text.SCHEMA_FILE).read_text())
    jsonschema.validate(body, schema)
    assert (ROOT / file_text.SCHEMA_FILE).read_text() == json_schema(), (
        "write it again: python -c 'from workloads.library.tests.jobs.test_job_file import *;"
        " print(json_schema(), end=str())' > " + file_text.SCHEMA_FILE
    )
    for name, property_schema in schema["properties"].items():
        if name != "schema":
            assert property_schema["description"]
    elastic = own(nodes="4..8")
    body = YAML(typ="safe").load(file_text.dump(elastic))
    assert body["nodes"] == "4..8"
    assert file_text.parse(body, "x") == elastic
    jsonschema.validate(body, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body | {"nodes": "8"}, schema)


def test_a_gang_is_rigid_elastic_or_sharded() -> None:
    job = own(nodes="4..8")
    assert (job.min_nodes, job.pods, job.elastic, job.gang) == (4, 8, True, False)
    assert (own(nodes=8).min_nodes, own(nodes=8).pods, own(nodes=8).elastic, own(nodes=8).gang) == (
        8,
        8,
        False,
        True,
    )
    shrinking = own(nodes="4..8", sharded=True)
    assert (shrinking.min_nodes, shrinking.pods, shrinking.gang) == (4, 8, False)
    assert shrinking.wait_s == 300.0
    assert own(nodes=8, sharded=True).wait_s == 300.0
    sharded = own(nodes=8, sharded=True)
    assert (sharded.min_nodes, sharded.in_place, sharded.elastic, sharded.gang) == (
        8,
        True,
        False,
        False,
    )


@pytest.mark.parametrize(
    ("fields", "problem", "fix"),
    [
        ({"command": ()}, "command is missing", "-- python train.py"),
        (
            {"command": ("python train.py --epochs 3",)},
            "command",
            'write ["python", "train.py", "--epochs", "3"]',
        ),
        ({"command": ("/usr/bin/python t.py",)}, "command", 'write ["/usr/bin/python", "t.py"]'),
        ({"name": "a" * 35}, "too long", "shorten"),
        ({"name": "My_Run"}, "name", "another name"),
        ({"gpus": "8xa1000"}, "unknown GPU", "did you mean"),
        ({"gpus": "16xa100"}, "GPUs of a node", "more --nodes"),
        ({"gpus": "a100"}, "gpus", "8xa100"),
        ({"gpus": "0xl4"}, "gpus", "8xa100"),
        ({"capacity": "spott"}, "capacity", "write spot"),
        ({"nodes": 0}, "nodes", "such a number"),
        ({"nodes": True}, "nodes", "such a number"),
        # Wrong ranges and what was meant.
        ({"nodes": "8..4"}, "nodes", "write 4..8"),
        ({"nodes": "0..4"}, "nodes", "write 1..4"),
        ({"nodes": "4..4"}, "nodes", "write 4"),
        ({"nodes": "4..2000"}, "nodes", "write 4..1000"),
        ({"nodes": "4-8"}, "nodes", "write 4..8"),
        ({"nodes": "4..8", "on_notice": "wrap"}, "on_notice", "leave it out"),
        ({"nodes": "4..8", "resumes": False}, "resumes", "leave it out"),
        (
            {
                "nodes": "4..8",
                "hours": 9.0,
                "deadline_hours": 20.0,
            },
            "deadline_hours",
            "leave it out",
        ),
        ({"sharded": True}, "sharded", "nodes: 2"),
        (
            {"sharded": True, "nodes": 2, "copies_in": "disk"},
            "copies_in",
            "state: 60Gi",
        ),
        (
            {"copies_in": "disk", "state": "6Gi"},
            "copies_in",
            "leave it out, or sharded: true",
        ),
        (
            {
                "nodes": "4..8",
                "sharded": True,
                "copies": 0,
            },
            "copies",
            "nodes: 8",
        ),
        (
            {
                "nodes": 4,
                "sharded": True,
                "on_notice": "wrap",
            },
            "on_notice",
            "leave it out, or sharded",
        ),
        (
            {
                "nodes": 4,
                "sharded": True,
                "copies": 2,
            },
            "copies",
            "range",
        ),
        (
            {
                "nodes": 4,
                "sharded": True,
                "state": "60",
            },
            "state",
            "unit",
        ),
        ({"nodes": 4, "copies": 0}, "copies", "sharded: true"),
        ({"nodes": 4, "state": "60Gi"}, "state", "sharded: true"),
        ({"data": "s3://b"}, "data", "gs://"),
        ({"data": "gs://ab/c"}, "data", "3 to 63 characters"),
        ({"env": {"HOLDFAST_JOB": "x"}}, "HOLDFAST_JOB", "leave it out"),
        ({"env": {"A": "\x00"}}, "env[A]", "file of the image"),
        ({"claims": {"/tmp/x": "c"}}, "path", "/mnt"),
        ({"claims": {"/mnt/../etc": "c"}}, "path", "/mnt"),
        ({"secrets": {"A": "projects/x/secrets/y"}}, "secrets[A]", "gcloud secrets list"),
        ({"scratch": "10"}, "scratch", "unit"),
        ({"max_hours": 10_001}, "max_hours", "range"),
        ({"hours": 9.0, "max_hours": 9.0}, "max_hours", "leave it out"),
        ({"predictor": "a:b"}, "a batch needs items", "--set data="),
        ({"predictor": "a:b", "data": "gs://bucket/a"}, "command", "leave the program out"),
        ({"predictor": "a.b", "data": "gs://bucket/a", "command": ()}, "predictor", "write a:b"),
        ({"predict_seconds": 60.0}, "predict_seconds", "leave it out"),
        ({"rows": "*.parquet"}, "rows", "leave it out"),
        (
            {"rows": "../*.jsonl", "data": "gs://bucket/a"},
            "rows",
            "as `*.parquet id prompt`",
        ),
        (
            {"rows": "a.csv", "data": "gs://bucket/a"},
            "rows",
            "as `*.parquet id prompt`",
        ),
    ],
)
def test_what_a_job_may_not_say(fields: dict[str, Any], problem: str, fix: str) -> None:
    with pytest.raises(InputError) as refused:
        own(**fields)
    assert problem in refused.value.what, str(refused.value)
    assert fix in refused.value.fix, str(refused.value)


@pytest.mark.parametrize(
    ("change", "problem", "fix"),
    [
        ({"schema": "holdfast.job/9"}, "schema", "new-job"),
        ({"node": 2}, "unknown field", "did you mean nodes?"),
        ({"command": "python train.py"}, "command", "`- `"),
        ({"env": {"A": 3}}, "env", "NAME: TEXT"),
        ({"nodes": "2"}, "nodes", "quotes"),
        ({"name": None}, "name", "quotes"),
    ],
)
def test_a_fault_names_the_file_and_the_field(
    change: dict[str, Any], problem: str, fix: str
) -> None:
    body = YAML(typ="safe").load(file_text.dump(own())) | change
    with pytest.raises(InputError) as refused:
        file_text.parse(body, "jobs/my-run.yaml")
    assert refused.value.what.startswith("jobs/my-run.yaml: ")
    assert problem in refused.value.what
    assert fix in refused.value.fix


STATED = {
    "name": "my-run",
    "environment": "example",
    "image": IMAGE,
    "command": ["python", "train.py"],
}


def test_a_field_without_a_default_must_be_given() -> None:
    fields = {**STATED}
    del fields["image"]
    with pytest.raises(InputError, match=r"got no image; .*fix: add image; "):
        file_text.assign([], fields)


def test_each_field_can_be_set_by_name() -> None:
    job = own(
        nodes=2,
        hours=2.5,
        max_hours=4.0,
        resumes=False,
        on_notice="wrap",
        restarts=5,
        processes=2,
        shm="1Gi",
        scratch="20Gi",
        checkpoints="gs://bucket/x",
        checkpoint_key="key",
        env={"A": "3", "B": "x=y"},
        secrets={"HF_TOKEN": "hf/3"},
        claims={"/mnt/models.v1": "models"},
    )
    words = [
        "gpus=1xl4",
        "nodes=2",
        "hours=2.5",
        "max_hours=4",
        "resumes=false",
        "on_notice=wrap",
        "restarts=5",
        "processes=2",
        "shm=1Gi",
        "scratch=20Gi",
        "checkpoints=gs://bucket/x",
        "checkpoint_key=key",
        "env.A=3",
        "env.B=x=y",
        "secrets.HF_TOKEN=hf/3",
        "claims./mnt/models.v1=models",
    ]
    assert file_text.assign(words, STATED) == job
    batch = ["sharded=true", "cpus=2", "memory=8Gi", "nodes=3"]
    assert file_text.assign(batch, STATED) == own(
        gpus="none",
        sharded=True,
        cpus=2.0,
        memory="8Gi",
        nodes=3,
    )
    assert file_text.assign(["nodes=4..8"], STATED).pods == 8


WRONG = {
    "restart=5": "unknown field: got restart",
    "restarts=many": "restarts: got 'many'",
    "restarts=-1": "restarts: got -1",
    "hours=nan": "hours: got 'nan'",
    "resumes=no": "resumes: got 'no'",
    "restarts": "no FIELD=VALUE",
    "env=MODE": "no FIELD=VALUE",
    "env.HOLDFAST_JOB=x": "HOLDFAST_JOB",
    "name=other": "given twice",
    "capacity=spott": "capacity: got 'spott'",
}


@pytest.mark.parametrize("word", WRONG)
def test_a_field_that_is_set_wrongly_is_refused_as_in_a_file(word: str) -> None:
    with pytest.raises(InputError, match=re.escape(WRONG[word])):
        file_text.assign([word], STATED)


FILE = file_text.dump(own())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (FILE + "gpus: 1xa100\n", "a key comes twice.*'gpus' is here a second time"),
        (FILE + "env: {A: x, A: y}\n", "a key comes twice.*'A' is here a second time"),
        (f"{FILE}---\n{FILE}", "more than a job.*2 documents, 2 of them jobs"),
        (f"{FILE}---\nkind: ConfigMap\n", "more than a job.*2 documents, 1 of them jobs"),
        (f"kind: ConfigMap\n---\n{FILE}", "more than a job"),
        (FILE + "gpu: 1xa100\n", "unknown field.*did you mean gpus"),
        (FILE + "spec: {}\n", "unknown field"),
    ],
)
def test_only_one_document_with_each_key_once_is_a_job(
    text: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    words = [
        "submit",
        str(path),
        "--dry-run",
        "--platform",
        str(platform_file("example")),
    ]
    with pytest.raises(InputError, match=problem):
        CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("40h", 40.0),
        ("2d", 48.0),
        ("90m", 1.5),
        (40, 40.0),
        (1.5, 1.5),
    ],
)
def test_hours_are_numbers_or_durations(text: Any, hours: float) -> None:
    document = YAML(typ="safe").load(file_text.dump(own())) | {"hours": text, "gpus": "1xl4"}
    assert file_text.parse(document, "job.yaml").hours == hours


def test_command_line_and_file_have_the_same_durations() -> None:
    values = {
        "name": "a",
        "environment": "example",
        "image": "trainer",
        "command": ("x",),
    }
    job = file_text.assign(["hours=2d", "max_hours=1000", "wait_hours=0"], values)
    assert job.hours == 48.0
    assert job.max_hours == 1000.0


@pytest.mark.parametrize("text", ["2 weeks", "1e3h", "-2d", "h", ""])
def test_what_is_no_duration_is_refused(text: str) -> None:
    document = YAML(typ="safe").load(file_text.dump(own())) | {"hours": text}
    with pytest.raises(InputError, match="hours") as refusal:
        file_text.parse(document, "job.yaml")
    assert "s, m, h or d" in str(refusal.value)
