"""Waits that the watcher wrote down here, on their way into the answer of `place`."""

import json
from pathlib import Path

import numpy as np
import pytest

from holdfast.contract.errors import InputError
from holdfast.contract.roles import NAMESPACE_BATCH, NAMESPACE_TRAINING
from holdfast.exporter import lines
from holdfast.exporter.objects import Node, Pod
from holdfast.place import ask, learned, outages, prices
from holdfast.place.churn.cli import show_churn
from holdfast.place.job import Job
from holdfast.place.outages import Outages
from workloads.library.tests.sample import EPOCH

HOUR, H100, REGION = 3_600.0, "nvidia-h100-80gb", "us-central1"
NODE = Node(
    pool="spot-h100", zone=f"{REGION}-a", machine_type="a3-highgpu-8g", capacity="spot", born_s=EPOCH, ends_s=0, taken=False
)  # fmt: skip


def start(
    job: str, nodes: int, asked_h: float, waited_h: float, namespace: str = NAMESPACE_TRAINING, capacity: str = "spot"
):  # type: ignore[no-untyped-def]
    """Lines of pods that were made together; the last gets its node after `waited_h`, the others sooner."""
    for n in range(nodes):
        waits_h = waited_h * (n + 1) / nodes
        pod = Pod(
            namespace=namespace, job=job, index=None, node="node-a", running_since_s=0, waits_since_s=0,
            capacity=capacity, accelerator=H100, system=False,
        )  # fmt: skip
        node = NODE if capacity == "spot" else None
        line = lines.scheduled(f"{job}-{asked_h}-{n}", pod, node, EPOCH + (asked_h + waits_h) * HOUR, waits_h * HOUR)
        assert line is not None
        yield line


@pytest.fixture
def measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A file as `holdfast churn --events DIR --json` prints it, from lines as the exporter writes them."""
    rows = [lines.node_up("node-a", NODE, EPOCH), lines.node_up("node-b", NODE, EPOCH)]
    for n in range(40):
        rows += start(f"gang-{n}", 8, n, 3.0)
        rows += start(f"gang-{n}", 8, n + 20, 0.5)
        rows += start(f"single-{n}", 1, n, 0.0)
        rows += start(f"flex-{n}", 8, n, 6.0, capacity="flex-start")
        rows.append(lines.admitted("queued", "flex", H100, EPOCH + n * HOUR, 6.0 * HOUR))
        rows.append(lines.admitted("spot", "spot", H100, EPOCH + n * HOUR, 99.0 * HOUR))
    rows += start("queue", 5, 1, 2.0, namespace=NAMESPACE_BATCH)
    lines.append(tmp_path / "events" / "watcher.jsonl", sorted(rows, key=lambda row: row["t"]))
    show_churn(tmp_path / "events", "", "", 14.0, as_json=True)
    path = tmp_path / "churn.json"
    path.write_text(capsys.readouterr().out)
    return path


def test_starts_are_kept_apart_by_gang_zone_and_whether_the_job_had_run(measured: Path) -> None:
    found = {
        (row["capacity"], row["gang"], row["zone"], row["again"]): sorted(row["hours"])
        for row in json.loads(measured.read_text())["waits"]
    }
    assert found == {
        ("spot", 8, NODE.zone, False): [pytest.approx(3.0)] * 40,
        ("spot", 8, NODE.zone, True): [pytest.approx(0.5)] * 40,
        ("spot", 1, NODE.zone, False): [pytest.approx(each) for each in (*[0.0] * 40, 0.4, 0.8, 1.2, 1.6, 2.0)],
        ("flex-start", 8, NODE.zone, False): [pytest.approx(6.0)] * 40,
        ("flex-start", 0, "", False): [pytest.approx(6.0)] * 40,  # the wait for quota of our own is none for machines
    }


def test_what_was_measured_outweighs_the_record_as_it_grows(measured: Path) -> None:
    gang, single = Job(accelerator=H100, gpus=64, hours=10), Job(accelerator=H100, gpus=1, hours=10)
    believed, found = (ask.Belief(measured=m).world(gang, prices.load()) for m in (None, measured))
    before, after = (world.waits(gang, REGION) for world in (believed, found))
    assert after is found.waits(gang, REGION), "paths are found again by the object"
    assert np.median(after.first_h) == pytest.approx(3.0)
    assert np.median(after.later_h) == pytest.approx(0.5)
    assert before.median_first_h != pytest.approx(3.0)
    # Forty starts against ten: a tenth of the weight still is the record's.
    assert after.at_once == pytest.approx(before.at_once * 0.2, abs=0.02)
    assert "80 starts measured here" in after.source
    # Elsewhere, and of gangs unlike these, nothing was learned.
    assert found.waits(gang, "us-east4") is outages.prior(H100, 8, "us-east4")
    assert "45 starts measured" in found.waits(single, REGION).source
    assert found.flex_waits.median_first_h == pytest.approx(6.0)
    assert ask.Belief(measured=measured, flex_wait_h=0.5).world(gang, prices.load()).flex_waits.median_first_h < 0.6


def test_a_mean_of_both_is_kept() -> None:
    believed = Outages(zones=("z",), first_h=np.full((1, 401), 2.0), later_h=np.full((1, 401), 2.0), source="so")
    row = learned.Waited(capacity="spot", gang=1, zone="", again=False, hours=(8.0,) * 10)
    mixed = learned.Waits(rows=(row,)).spot(believed, 1, REGION)
    assert mixed.first_h.mean() == pytest.approx(5.0, rel=0.02)
    assert mixed.later_h.mean() == 2.0
    assert learned.Waits().spot(believed, 1, REGION) is believed


@pytest.mark.parametrize("waits", ["[{}]", "3", '[{"accelerator": "nvidia-h100-80gb", "hours": [-1]}]'])
def test_waits_that_are_none_are_refused(tmp_path: Path, waits: str) -> None:
    path = tmp_path / "churn.json"
    path.write_text(f'{{"churn": [], "waits": {waits}}}')
    with pytest.raises(InputError, match="measured churn"):
        learned.read(path, H100)
