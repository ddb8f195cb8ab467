"""Tests of what the recording of a bench says about the figures of before."""

from workloads.library.tests.bench.figures import list_changes


def test_record_names_figures_that_changed_by_half() -> None:
    before = {"rate": 8726, "drain": {"p99_s": 1.0, "lost": 0}, "goals": {"flat": True}}
    after = {"rate": 1159, "drain": {"p99_s": 1.2, "lost": 3}, "goals": {"flat": False}}
    assert list_changes(before, after) == ["rate 8726 -> 1159"]
    assert list_changes(after, after | {"drain": {"p99_s": 1.8}}) == ["drain.p99_s 1.2 -> 1.8"]
