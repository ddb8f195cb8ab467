"""`drift`: what would change, losses first; the exit code of the command says whether anything would."""

import json

import pytest

from infra.ops import drift
from infra.ops.plan import changes_of
from tests.infra.samples import EXAMPLE

PLAN = {
    "resource_changes": [
        {"address": f"google_a.{name}", "type": "google_a", "change": {"actions": actions}}
        for name, actions in {"new": ["create"], "same": ["no-op"], "gone": ["delete", "create"]}.items()
    ]
}


def test_losses_stand_first_and_what_stays_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    drift.show(EXAMPLE, {"cluster-example": changes_of(PLAN)}, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert "google_a.gone" in lines[1] and "google_a.new" in lines[2]
    assert lines[-1] == "example: 2 changes, 1 destroy or replace"


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    drift.show(EXAMPLE, {"cluster-example": changes_of(PLAN)}, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "holdfast.drift/1" and len(found["changes"]) == 2
