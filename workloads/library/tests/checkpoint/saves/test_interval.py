"""The interval: what a save costs, and a hazard that counts quiet time."""

import random

import pytest

from holdfast.checkpoint.cadence import HOUR_S, Hazard, SaveCostModel
from holdfast.checkpoint.settings import MIB, MIN_SHARD_BYTES
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW


def test_the_estimate_finds_the_rate_from_censored_lifetimes() -> None:
    rng = random.Random(3)
    hazard = Hazard()
    for _ in range(3000):
        lifetime = rng.expovariate(1 / (2 * HOUR_S))
        watched = rng.uniform(0, HOUR_S)
        hazard.exposure_s += min(lifetime, watched)
        hazard.events += lifetime < watched
    assert 1 / hazard.rate == pytest.approx(2 * HOUR_S, rel=0.08)


def test_a_hazard_is_restored_from_checkpoint_notes() -> None:
    notes_of_an_older_release = {
        "hazard": {
            "events": [1.0, 0.0],
            "exposure_s": [HOUR_S, 3 * HOUR_S],
        },
        "ended": True,
    }
    for notes in (
        Hazard(events=1, exposure_s=4 * HOUR_S).notes(is_complete=True),
        notes_of_an_older_release,
    ):
        hazard = Hazard.from_notes(notes)
        assert hazard.events == 1
        assert hazard.exposure_s == pytest.approx(4 * HOUR_S, abs=1)


def test_steps_slowed_by_an_upload_are_included_in_the_cost() -> None:
    model = SaveCostModel(Hazard(), floor_s=1, ceiling_s=1e9)
    model.blocking_s = 0.1
    model.persist_s = 10.0
    assert model.cost_s == pytest.approx(0.1)
    model.observe_step(1.0, uploading=False)
    model.observe_step(1.25, uploading=True)
    assert model.cost_s == pytest.approx(0.1 + 10.0 * 0.2)


def test_next_save_leaves_frozen_parameters_out() -> None:
    model = SaveCostModel(Hazard(), floor_s=1, ceiling_s=1e9)
    model.observe_save(160.0, 16_000, 15_600)
    assert (model.persist_s, model.repeated_bytes) == (pytest.approx(4.0), 400)
    model.observe_save(5.0, 400, 0)
    assert (model.persist_s, model.repeated_bytes) == (5.0, 400)


def test_the_newest_large_save_estimates_how_long_a_whole_state_takes() -> None:
    model = SaveCostModel(Hazard(), floor_s=1, ceiling_s=1e9)
    assert model.estimate_s(16_000 * MIB) == 0
    model.observe_save(160.0, 16_000 * MIB, 15_600 * MIB)
    model.observe_save(5.0, 400 * MIB, 0)
    assert model.estimate_s(32_000 * MIB) == 320.0
    model.observe_save(80.0, 15_900 * MIB, 0)
    assert model.estimate_s(31_800 * MIB) == 160.0


def test_few_bytes_take_as_long_as_the_smallest_object() -> None:
    model = SaveCostModel(Hazard(), floor_s=1, ceiling_s=1e9)
    model.observe_save(0.5, 100, 0)
    assert model.estimate_s(20) == 0.5
    assert model.estimate_s(4 * MIN_SHARD_BYTES) == 2.0


# Llama 3 8B: inputs and outputs of the linear layers of each of its 32 blocks.
BLOCKS = 32
LINEAR_LAYERS = (
    (4096, 4096),
    (4096, 1024),
    (4096, 1024),
    (4096, 4096),
    (4096, 14_336),
    (4096, 14_336),
    (14_336, 4096),
)
LORA_RANK = 16
BASE_BYTES = 16_060_522_496
"""Its parameters in bfloat16."""
BUCKET_BYTES_PER_S = 100e6
"""Published for one stream to a standard bucket: the benches use a quarter of it."""
WINDOW_S = DEFAULT_WINDOW.pod_s
STOPS = 100


def count_adapter_bytes() -> int:
    """Returns the bytes of an adapter on all linear layers and of its two moments, in float32."""
    parameters = 0
    for inputs, outputs in LINEAR_LAYERS:
        parameters += BLOCKS * LORA_RANK * (inputs + outputs)
    return 3 * 4 * parameters


@pytest.mark.parametrize("saves", [1, 2], ids=["after the save of the base", "later"])
def test_8b_adapter_fits_the_window(
    saves: int,
) -> None:
    """Arithmetic of a stop at one stream's bandwidth: the upload in flight is waited for first."""
    adapter_bytes = count_adapter_bytes()
    assert 0.5e9 < adapter_bytes < 0.51e9
    upload_s = adapter_bytes / BUCKET_BYTES_PER_S
    model = SaveCostModel(Hazard(), floor_s=1, ceiling_s=1e9)
    first_s = (BASE_BYTES + adapter_bytes) / BUCKET_BYTES_PER_S
    model.observe_save(first_s, BASE_BYTES + adapter_bytes, BASE_BYTES)
    for _ in range(1, saves):
        model.observe_save(upload_s, adapter_bytes, 0)
    assert first_s > 10 * WINDOW_S
    fitting = 0
    for stop in range(STOPS):
        in_flight_s = upload_s * stop / STOPS
        remaining_s = WINDOW_S - in_flight_s
        fitting += model.persist_s < remaining_s
        assert in_flight_s + upload_s < WINDOW_S
    assert fitting == STOPS


@pytest.mark.parametrize(
    ("blocking_s", "persist_s", "interval_s"),
    [
        (0.0, 0.0, 30),
        (0.0, 120.0, 120),
        (10_000.0, 120.0, 1800),
        (0.2, 40.0, 40),
        (2.0, 40.0, 2.0 / 0.02),
    ],
    ids=["floor", "an upload's time", "ceiling", "when the last is durable", "2 % of the time"],
)
def test_the_interval_before_an_eviction_is_seen(
    blocking_s: float,
    persist_s: float,
    interval_s: float,
) -> None:
    model = SaveCostModel(Hazard(), floor_s=30, ceiling_s=1800)
    model.blocking_s = blocking_s
    model.persist_s = persist_s
    assert model.interval_s() == interval_s
    model.hazard.exposure_s += 20 * HOUR_S
    assert blocking_s != 2.0 or model.interval_s() > 200, "a quiet run saves less often"


@pytest.mark.parametrize(("is_complete", "evictions"), [(False, 1), (True, 0)])
def test_a_resume_counts_as_an_eviction_unless_the_run_was_complete(
    is_complete: bool, evictions: int
) -> None:
    first = Hazard.from_notes({})
    assert first.events == 0
    assert Hazard.from_notes(first.notes(is_complete=is_complete)).events == evictions
