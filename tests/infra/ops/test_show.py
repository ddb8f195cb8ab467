"""What the commands print: losses first, one object with --json, nothing cut."""

import json
from pathlib import Path

import pytest

from infra.ops import show
from infra.ops.plan import Change, changes, counts
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


def test_json_is_one_object_with_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    show.plan(CHANGES, [FINDING], full=False, as_json=True)
    output = json.loads(capsys.readouterr().out)
    assert output["schema"] == "holdfast.plan/1"
    assert output["destroys"] == ["google_b.new", "google_c.gone"]
    assert output["findings"][0]["rule"] == "gpu-taint"


def test_wide_cells_are_not_cut_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show.print_table(["A", "B"], [("x" * 300, "[brackets] stay")])
    out = capsys.readouterr().out
    assert "x" * 300 in out and "[brackets] stay" in out


def test_what_stays_as_it_is_counts_as_no_change(tmp_path: Path) -> None:
    rows = [("google_a.x", ["no-op"]), ("google_a.y", ["create"]), ("google_a.z", ["update"])]
    file = tmp_path / "plan.json"
    file.write_text(
        json.dumps(
            {"resource_changes": [{"address": a, "type": "google_a", "change": {"actions": acts}} for a, acts in rows]}
        )
    )
    found = changes(file)
    assert [c.address for c in found] == ["google_a.y", "google_a.z"]
    assert counts(found) == {"google_a": 2}
