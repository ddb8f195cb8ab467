import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.runtime.events import EventLog
from holdfast.runtime.phases import Phases
from holdfast.training.trainer.metrics import SLOW, Meter, describe_slowest, digest


def meter_in(path: Path, begun: int = 0, *, lead: bool = True, **options: Any) -> Meter:
    meter = Meter(EventLog.open(path / "e", job="j", kind="training"), **options)
    meter.begin(begun, lead=lead)
    return meter


def read_windows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "e").read_text().splitlines()]


def windows(path: Path) -> list[tuple[int, int, float]]:
    losses: list[tuple[int, int, float]] = []
    for e in read_windows(path):
        if e["event"] == "window":
            losses.append((e["first_step"], e["last_step"], e["loss"]))
    return losses


@pytest.mark.parametrize(
    ("all_s", "slowest"),
    [
        ([0.1, 0.1, 0.3, 0.1], (2, 3.0)),
        ([0.2, 0.1], (0, 2.0)),
        ([0.1, 0.11], (1, 1.1)),
        ([1e-4, 1e-2], None),
    ],
)
def test_a_rank_that_is_slower_than_its_gang_is_named(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    all_s: list[float],
    slowest: tuple[int, float] | None,
) -> None:
    meter = meter_in(tmp_path, every=2)
    meter.slowest = lambda: describe_slowest(dict(enumerate(all_s)))
    for done in range(1, 5):
        meter.step(done, torch.tensor(0.0))
    for window in read_windows(tmp_path):
        assert (window.get("slowest_rank"), window.get("slowest_by")) == (slowest or (None, None))
    assert caplog.text.count("as long as the others") == (
        slowest is not None and slowest[1] >= SLOW
    ), "once"


@pytest.mark.parametrize("lead", [False, True])
def test_all_ranks_measure_and_only_the_lead_writes(tmp_path: Path, lead: bool) -> None:
    done = list[int]()
    compared = list[int]()
    phases = Phases.of_process()
    phases.lap("interpreter")
    meter = meter_in(
        tmp_path,
        7,
        lead=lead,
        every=5,
        phases=phases,
        on_step=done.append,
    )
    meter.slowest = lambda: compared.append(done[-1]) or {}
    for step in range(8, 23):
        meter.step(step, torch.tensor(float(step)))
    meter.flush()
    assert done == [*range(8, 23)]
    assert compared == [10, 15, 20, 22]
    joined = [
        (8, 10, 10.0),
        (11, 15, 15.0),
        (16, 20, 20.0),
        (21, 22, 22.0),
    ]
    assert windows(tmp_path) == joined * lead, "without a gap, from the restored step on"
    startups = []
    for event in read_windows(tmp_path):
        if event["event"] == "startup":
            startups.append(event["phases"])
    assert [list(startup) for startup in startups] == [["interpreter", "first step"]] * lead, (
        "once, in parts"
    )


def test_a_step_whose_comparison_a_lost_rank_ends_is_reported_once(tmp_path: Path) -> None:
    def lose() -> dict[str, Any]:
        raise ConnectionError("peer gone")

    meter = meter_in(tmp_path, 8, every=1)
    meter.slowest = lose
    with pytest.raises(ConnectionError):
        meter.step(9, torch.tensor(0.5))
    meter.flush()
    assert windows(tmp_path) == [(9, 9, 0.5)]


def test_digest_sees_one_bit_in_the_optimizer() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    before = digest(model, optimizer)
    assert digest(model, optimizer) == before
    moment = optimizer.state[model.bias]["exp_avg"]
    moment.view(torch.int32)[0] ^= 1
    assert digest(model, optimizer) != before
