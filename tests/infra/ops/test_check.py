"""`check`: broken, right but not settled, right; each with its exit code."""

import importlib.util
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.contract.errors import InputError
from holdfast.contract.exit_codes import EXIT_DONE, EXIT_FINDINGS
from infra import environments
from infra.__main__ import app
from infra.environments import Environment, load, placeholders
from infra.environments.schema import Freeze
from infra.ops import show
from infra.ops.new import create
from infra.rules import judge_environment
from infra.specs import resources
from tests.infra.samples import EXAMPLE

# So short that it leaves upgrades their time: nothing else is wrong with it.
PAST = Freeze(name="launch", start="2020-12-24T00:00:00Z", end="2020-12-25T00:00:00Z")


@pytest.mark.parametrize(
    ("environment", "state"),
    [
        (EXAMPLE, "right"),
        (replace(load("prod"), alerts=EXAMPLE.alerts), "not settled"),
        (replace(load("prod"), budget=None), "broken"),
        (replace(EXAMPLE, cluster=replace(EXAMPLE.cluster, freezes=(PAST,))), "not settled"),
    ],
)
def test_only_what_is_right_and_settled_passes(
    environment: Environment, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show.check(environment, as_json=True) == (EXIT_DONE if state == "right" else EXIT_FINDINGS)
    assert json.loads(capsys.readouterr().out)["state"] == state


def test_each_open_field_is_named_with_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert show.check(load("prod"), as_json=False) == EXIT_FINDINGS
    printed = capsys.readouterr().out
    assert "infra/environments/prod.py: security.kms_key is still CHANGE-ME" in printed
    assert printed.splitlines()[-1].endswith("valid, but not ready to deploy")


def test_a_freeze_that_is_over_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    past = Freeze(name="year-end", start="2020-12-19T00:00:00Z", end="2021-01-04T00:00:00Z")
    over = replace(EXAMPLE, cluster=replace(EXAMPLE.cluster, freezes=(past,)))
    assert show.check(over, as_json=False) == EXIT_FINDINGS
    assert "cluster.freezes[year-end] is over" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "code"), [("example", EXIT_DONE), ("prod", EXIT_FINDINGS)])
def test_the_commands_exit_code_is_that_of_the_state(name: str, code: int) -> None:
    assert CliRunner().invoke(app, ["check", name]).exit_code == code


@pytest.mark.process
def test_outputs_are_what_the_stacks_make() -> None:
    found = json.loads(CliRunner().invoke(app, ["outputs", "example", "--json"]).stdout)["outputs"]
    made = [r.arguments for r in resources(EXAMPLE)]
    buckets = {f"gs://{m['name']}" for m in made if "storage_class" in m}
    accounts = {m["account_id"] for m in made if "account_id" in m}
    assert {value for key, value in found.items() if key.startswith("bucket ")} == buckets
    assert {value.split("@")[0] for key, value in found.items() if key.startswith("account ")} == accounts
    assert found["images"].rpartition("/")[2] in {m.get("repository_id") for m in made}
    assert found["topic work"].rpartition("/")[2] in {m.get("name") for m in made}
    assert found["credentials"].startswith(
        "gcloud container clusters get-credentials holdfast-example --region=us-central1"
    )
    assert found["bucket checkpoints"] == f"gs://{EXAMPLE.bucket('checkpoints')}"
    assert found["account trainer"] == EXAMPLE.service_account_email("trainer")


# `infra new` writes a module that loads, says CHANGE-ME where it must, and keeps the protections.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(Path(environments.__file__).with_name("example.py"), tmp_path)
    return tmp_path


def test_the_new_environment_loads_and_asks_for_what_is_personal(folder: Path) -> None:
    path = create("team", folder)
    spec = importlib.util.spec_from_file_location("team", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    environment = module.ENVIRONMENT
    assert environment.name == "team"
    assert placeholders(environment) == [
        "project_id",
        "project_number",
        "state_bucket",
        "alerts.emails[0]",
        "alerts.readers[0]",
    ]
    assert judge_environment(environment) == []


def test_the_new_environment_keeps_what_a_trial_gives_up(folder: Path) -> None:
    text = create("team", folder).read_text()
    for trial in ("deletion_protection=False", "allow_destroy", "allow_drills", "acme"):
        assert trial not in text


@pytest.mark.parametrize("name", ["example", "Dev", "a-name", "class", "much-too-long-for-this"])
def test_a_name_that_cannot_be_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(InputError, match="environment name"):
        create(name, folder)


def test_no_module_of_the_schema_is_overwritten(folder: Path) -> None:
    kept = folder / "schema.py"
    kept.write_text("# the schema\n")
    with pytest.raises(InputError, match="environment name"):
        create("schema", folder)
    assert kept.read_text() == "# the schema\n"
