"""`check`: broken, right but not settled, right; each with its exit code."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS
from infra.__main__ import app
from infra.environments import Environment, load
from infra.ops import show
from infra.specs import resources
from tests.infra.samples import EXAMPLE


@pytest.mark.parametrize(
    ("environment", "state"),
    [
        (EXAMPLE, "right"),
        (replace(load("prod"), alerts=EXAMPLE.alerts), "not settled"),
        (replace(load("prod"), budget=None), "broken"),
    ],
)
def test_only_right_and_settled_pass(
    environment: Environment,
    state: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert show.check(environment, as_json=True) == (
        EXIT_DONE if state == "right" else EXIT_FINDINGS
    )
    assert json.loads(capsys.readouterr().out)["state"] == state


def test_placeholders_are_named_with_their_file() -> None:
    done = CliRunner().invoke(app, ["check", "prod"])
    assert done.exit_code == EXIT_FINDINGS
    printed = done.stdout
    assert "infra/environments/prod.py: security.kms_key is still CHANGE-ME" in printed
    assert printed.splitlines()[-1].endswith("valid, but not ready to deploy")


def test_outputs_are_what_the_stacks_make() -> None:
    printed = json.loads(CliRunner().invoke(app, ["outputs", "example", "--json"]).stdout)[
        "outputs"
    ]
    arguments = [r.arguments for r in resources(EXAMPLE)]
    buckets = set()
    for m in arguments:
        if "storage_class" in m:
            buckets.add(f"gs://{m['name']}")
    accounts = {m["account_id"] for m in arguments if "account_id" in m}
    values = set()
    printed_accounts = set()
    for key, value in printed.items():
        if key.startswith("bucket "):
            values.add(value)
        if key.startswith("account "):
            printed_accounts.add(value.split("@")[0])
    assert values == buckets
    assert printed_accounts == accounts
    assert printed["images"].rpartition("/")[2] in {m.get("repository_id") for m in arguments}
    assert printed["topic work"].rpartition("/")[2] in {m.get("name") for m in arguments}
    reach = "gcloud container clusters get-credentials holdfast-example --region=us-central1"
    assert printed["credentials"].startswith(reach)
    assert printed["bucket checkpoints"] == f"gs://{EXAMPLE.bucket('checkpoints')}"
    assert printed["account trainer"] == EXAMPLE.service_account_email("trainer")
