"""The stops of an adapter, with a small model: the bench itself is too long for a test."""

from pathlib import Path

import pytest

from workloads.library.tests.bench.checkpoints.lora_stops import judge_stops, measure_stops

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


def test_stopped_adapter_is_saved_and_restored(tmp_path: Path) -> None:
    figures = measure_stops(tmp_path, stops=2, layers=1, width=256, mb_per_s=100.0)
    assert figures["lost_steps"] == 0
    assert figures["fit"] == 2
    # With Adam's moments, and without the base.
    assert 0 < figures["written_bytes_max"] < figures["base_bytes"]
    assert judge_stops(figures | {"stops": 100, "fit": 100}) != judge_stops(figures)
