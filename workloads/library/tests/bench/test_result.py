"""Tests the frame that all benches share, and the record of a part of one."""

import json
from pathlib import Path

import pytest

from workloads.library.tests.bench import figures
from workloads.library.tests.bench.result import collect_columns


def test_columns_keep_row_order() -> None:
    rows = [{"save_s": 2.0, "load_s": 5.0}, {"save_s": 1.0, "load_s": 7.0}]
    assert collect_columns(rows) == {"save_s": [2.0, 1.0], "load_s": [5.0, 7.0]}
    assert collect_columns([]) == {}


def test_flat_sections_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their figures are added to those of other sections, which stay."""
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "RECORDED", tmp_path)
    partial = {
        "drains_failed": 1,
        "drains_section_s": 2.0,
        "goals": {"none failed": False, "p99": "not run"},
    }
    (tmp_path / "Makefile").write_text(f"bench-x:\n\t@echo '{json.dumps(partial)}'\n")
    result = {
        "drains_failed": 0,
        "drains_section_s": 9.0,
        "late_failed": 0,
        "goals": {"none failed": True, "p99": True},
    }
    facts = {
        "command": "make bench-x",
        "day": "2026-11-23",
        "machine": "2 cores",
        "result": result,
    }
    file = tmp_path / "bench-x.json"
    file.write_text(json.dumps(facts))
    figures.record("bench-x", "SECTIONS=drains")
    recorded = json.loads(file.read_text())
    assert recorded["result"] == {
        "drains_failed": 1,
        "drains_section_s": 2.0,
        "late_failed": 0,
        "goals": {"none failed": False, "p99": True},
    }
    assert [*recorded["parts"]] == ["drains"]
