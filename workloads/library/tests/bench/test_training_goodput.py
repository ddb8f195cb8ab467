"""Tests what the benchmark of training computes from its samples."""

from workloads.library.tests.bench.training_goodput import describe_restarts


def test_each_variant_and_part_has_its_median() -> None:
    first_step_s = {"holdfast": [2.0, 4.0, 3.001], "naive": [9.0]}
    startups = [{"import": 1.0, "restore": 0.5}, {"import": 2.0, "restore": 0.25}]
    assert describe_restarts(first_step_s, startups) == {
        "first_step_s": {"holdfast": 3.0, "naive": 9.0},
        "parts": {"import": 1.5, "restore": 0.38},
    }
