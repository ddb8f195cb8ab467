import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.runtime.events import EventLog
from holdfast.runtime.phases import Phases
from holdfast.training.meter import SLOW, Alone, Meter, digest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "e"


def meter_in(path: Path, **options: Any) -> Meter:
    return Meter(EventLog.open(path, job="j", kind="training"), **options)


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_windows_join_without_gap_from_the_restored_step_on(path: Path) -> None:
    meter = meter_in(path, every=5)
    meter.begin(7, lead=True)
    for done in range(8, 23):
        meter.step(done, torch.tensor(float(done)))
    meter.flush()
    windows = [(e["first_step"], e["last_step"], e["loss"]) for e in written(path)]
    assert windows == [(8, 10, 10.0), (11, 15, 15.0), (16, 20, 20.0), (21, 22, 22.0)]


@pytest.mark.parametrize(
    ("all_s", "found"),
    [([0.1, 0.1, 0.3, 0.1], (2, 3.0)), ([0.2, 0.1], (0, 2.0)), ([0.1, 0.11], (1, 1.1)), ([1e-4, 1e-2], None)],
)
def test_a_rank_that_is_slower_than_its_gang_is_named(
    path: Path, capsys: pytest.CaptureFixture[str], all_s: list[float], found: tuple[int, float] | None
) -> None:
    meter = meter_in(path, every=2)
    alone = Alone(torch.device("cpu"), lambda own_s: all_s)
    meter.slowest = alone.slowest
    meter.begin(0, lead=True)
    for done in range(1, 5):
        with alone.part():
            pass
        meter.step(done, torch.tensor(0.0))
    for window in written(path):
        assert (window.get("slowest_rank"), window.get("slowest_by")) == (found or (None, None))
    assert capsys.readouterr().out.count("as long as the others") == (found is not None and found[1] >= SLOW), "once"


def test_every_rank_reports_its_steps_and_joins_in_the_comparison_and_only_the_lead_writes(path: Path) -> None:
    found = list[tuple[list[int], list[int]]]()
    for lead in (False, True):
        done, compared = list[int](), list[int]()
        meter = meter_in(path, every=5, on_step=done.append)
        meter.begin(7, lead=lead)
        for step in range(8, 21):
            meter.slowest = lambda step=step, compared=compared: compared.append(step) or {}
            meter.step(step, torch.tensor(0.0))
        meter.flush()
        found.append((done, compared))
        assert bool(written(path)) == lead
    assert found == [([*range(8, 21)], [10, 15, 20])] * 2


def test_a_step_whose_comparison_a_lost_rank_ends_is_reported_once(path: Path) -> None:
    def lost() -> dict[str, Any]:
        raise ConnectionError("peer gone")

    meter = meter_in(path, every=1)
    meter.begin(8, lead=True)
    meter.slowest = lost
    with pytest.raises(ConnectionError):
        meter.step(9, torch.tensor(0.5))
    meter.flush()
    assert [(e["first_step"], e["last_step"], e["loss"]) for e in written(path)] == [(9, 9, 0.5)]


def test_the_start_is_told_once_in_parts(path: Path) -> None:
    phases = Phases.of_process()
    phases.lap("interpreter")
    meter = meter_in(path, every=10, phases=phases)
    meter.begin(0, lead=True)
    meter.step(1, torch.tensor(0.0))
    meter.step(2, torch.tensor(0.0))
    (startup,) = written(path)
    assert list(startup["phases"]) == ["interpreter", "first step"]
    assert all(seconds >= 0 for seconds in startup["phases"].values())


def test_the_digest_sees_one_bit_of_the_optimizer() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    before = digest(model, optimizer)
    assert digest(model, optimizer) == before
    moment = optimizer.state[model.bias]["exp_avg"]
    moment.view(torch.int32)[0] ^= 1
    assert digest(model, optimizer) != before
