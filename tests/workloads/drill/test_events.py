"""What the drill reads off event lines, and what it concludes."""

import json
from pathlib import Path

from workloads.drill.events import Follower
from workloads.drill.schedule import evictions
from workloads.drill.training import losses, recoveries_s


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    follower = Follower(path)
    assert follower.read() == []
    path.write_text('{"event": "start"}\n{"event": "wi')
    assert [e["event"] for e in follower.read()] == ["start"]
    with path.open("a") as file:
        file.write('ndow", "last_step": 3}\n')
    assert [e["event"] for e in follower.read()] == ["window"]
    assert follower.last("window", "last_step") == 3


def test_a_line_cut_by_a_kill_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text('{"event": "window", "last_st\n{"event": "stop", "step": 4}\n[1]\n')
    assert [e["event"] for e in Follower(path).read()] == ["stop"]


def lines(*events: dict[str, object]) -> list[dict[str, object]]:
    return [json.loads(json.dumps(event)) for event in events]


def test_lost_steps_are_those_between_the_last_step_and_the_restored_one() -> None:
    history = lines(
        {"event": "restore", "step": 0}, {"event": "window", "last_step": 57},
        {"event": "restore", "step": 40}, {"event": "window", "last_step": 60},
        {"event": "restore", "step": 60}, {"event": "window", "last_step": 90},
    )  # fmt: skip
    assert losses(history) == [17, 0]


def test_a_restart_from_scratch_loses_everything() -> None:
    history = lines(
        {"event": "restore", "step": 0}, {"event": "window", "last_step": 57}, {"event": "restore", "step": 0}
    )
    assert losses(history) == [57]


def test_recovery_runs_from_the_eviction_to_the_begin_of_the_next_steps() -> None:
    history = lines(
        {"event": "window", "t": 9.0, "seconds": 1.0, "last_step": 5},
        {"event": "evict", "t": 10.0},
        {"event": "window", "t": 10.2, "seconds": 0.5, "last_step": 7},  # still the old attempt, inside its window
        {"event": "restore", "t": 16.0, "step": 7},
        {"event": "window", "t": 18.5, "seconds": 0.5, "last_step": 9},
    )  # fmt: skip
    assert recoveries_s(history) == [8.0]


def test_schedules_are_seeded_ordered_and_alternate() -> None:
    one, two = (evictions(seed=3, count=6, total=240, first=20) for _ in range(2))
    assert one == two != evictions(seed=4, count=6, total=240, first=20)
    assert [e.at for e in one] == sorted(e.at for e in one)
    assert {e.signal for e in one} == {"SIGTERM", "SIGKILL"}
    assert all(20 <= e.at <= 216 for e in one)
