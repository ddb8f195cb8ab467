"""What the commands print: losses first, one object with --json."""

import json

import pytest

from infra.ops import show
from infra.ops.plan import Change
from infra.rules import Finding


def change(address: str, *actions: str) -> Change:
    return Change(address=address, kind=address.split(".")[0], actions=actions)


CHANGES = {
    "cluster-x": [change("google_a.keep", "create"), change("google_b.new", "delete", "create")],
    "foundation-x": [change("google_c.gone", "delete")],
}
FINDING = Finding(rule="gpu-taint", where="google_b.new", got="none", allowed="the taint", fix="add it")


def test_destroys_and_replacements_come_first_then_broken_rules(capsys: pytest.CaptureFixture[str]) -> None:
    show.plan(CHANGES, [FINDING], full=True, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["REPLACE  google_b.new", "DESTROY  google_c.gone"]
    assert lines[2].startswith("BROKEN   [gpu-taint] google_b.new")
    assert lines[-1] == "3 changes, 2 destroy or replace, 1 rules broken"
    show.plan(CHANGES, [FINDING], full=False, as_json=True)
    output = json.loads(capsys.readouterr().out)
    assert (output["schema"], output["findings"][0]["rule"]) == ("holdfast.plan/1", "gpu-taint")
    assert output["destroys"] == ["google_b.new", "google_c.gone"]
