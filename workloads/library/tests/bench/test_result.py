"""Tests the frame that all benches share."""

from workloads.library.tests.bench.result import collect_columns


def test_columns_keep_row_order() -> None:
    rows = [{"save_s": 2.0, "load_s": 5.0}, {"save_s": 1.0, "load_s": 7.0}]
    assert collect_columns(rows) == {"save_s": [2.0, 1.0], "load_s": [5.0, 7.0]}
    assert collect_columns([]) == {}
