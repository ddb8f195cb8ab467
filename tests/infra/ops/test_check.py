"""`check`: broken, right but not settled, right; each with its exit code."""

import json
from dataclasses import replace

import pytest

from infra.environments import Environment, load
from infra.ops import judgement, outputs
from tests.infra.samples import EXAMPLE


@pytest.mark.parametrize(
    ("environment", "state"),
    [
        (EXAMPLE, "right"),
        (replace(load("prod"), alerts=EXAMPLE.alerts), "not settled"),
        (replace(load("prod"), budget=None), "broken"),
    ],
)
def test_only_what_is_right_and_settled_passes(
    environment: Environment, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judgement.check(environment, as_json=True) is (state == "right")
    assert json.loads(capsys.readouterr().out)["state"] == state


def test_each_open_field_is_named_with_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert judgement.check(load("prod"), as_json=False) is False
    printed = capsys.readouterr().out
    assert "infra/environments/prod.py: security.kms_key is still CHANGE-ME" in printed
    assert printed.splitlines()[-1].endswith("right, but not settled")


def test_outputs_are_what_the_stacks_make(capsys: pytest.CaptureFixture[str]) -> None:
    outputs.show(EXAMPLE, as_json=True)
    found = json.loads(capsys.readouterr().out)["outputs"]
    assert found["credentials"].startswith(
        "gcloud container clusters get-credentials holdfast-example --region=us-central1"
    )
    assert found["bucket checkpoints"] == f"gs://{EXAMPLE.bucket('checkpoints')}"
    assert found["account trainer"] == EXAMPLE.service_account_email("trainer")
