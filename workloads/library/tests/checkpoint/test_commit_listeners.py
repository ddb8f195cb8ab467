"""Entries of the state that are notified of ticks and commits."""

from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.commit_listeners import CommitListeners
from holdfast.checkpoint.restore import Restored
from holdfast.checkpoint.verify_exact import digest_state
from workloads.library.tests.checkpoint.made import alone


class Recorder:
    """A listener that records its notifications."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def state_dict(self) -> dict[str, Any]:
        return {"calls": len(self.calls)}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        self.calls = [("loaded",)] * state_dict["calls"]

    def begin_run(self, run: str, step: int, *, token: str, is_coordinator: bool) -> None:
        assert token
        self.calls.append(("begin", run, step, is_coordinator))

    def record_tick(self, step: int) -> None:
        self.calls.append(("tick", step))

    def record_commit(self, step: int) -> None:
        self.calls.append(("commit", step))

    def take_over(self) -> None:
        self.calls.append(("take over",))

    def end_run(self, timeout_s: float, *, is_complete: bool) -> None:
        assert timeout_s > 0
        self.calls.append(("end", is_complete))


@pytest.mark.process
def test_listener_hears_ticks_and_durable_steps(tmp_path: Path) -> None:
    first = Recorder()
    state = {"weight": torch.zeros(1), "listener": first}
    with Checkpointer(tmp_path, state, run="r", every=2) as ckpt:
        for step in range(3):
            ckpt.tick(step + 1)
            assert ckpt.wait(60)
    begin, *middle, end = first.calls
    assert begin == ("begin", "r", 0, True)
    assert end == ("end", True)
    assert middle == [
        ("tick", 1),
        ("tick", 2),
        ("tick", 3),
        ("commit", 2),
        ("commit", 3),
    ]

    second = Recorder()
    with (
        pytest.raises(KeyError),
        Checkpointer(tmp_path, state | {"listener": second}, run="r"),
    ):
        raise KeyError
    heard = [call for call in second.calls if call != ("loaded",)]
    assert heard == [
        ("begin", "r", 3, True),
        ("commit", 3),
        ("end", False),
    ]


def test_trial_passes_no_commit_on_and_compares_no_listener() -> None:
    listener = Recorder()
    state = {
        "weight": torch.zeros(1),
        "listener": listener,
    }
    restored = Restored(
        step=4,
        skipped=0,
        damaged={},
        seconds=0.0,
    )
    listeners = CommitListeners(
        state,
        "r",
        alone(),
        restored,
        is_trial=True,
    )
    listeners.record_commit(6)
    assert listener.calls == [("begin", "r", 4, True)]
    assert "listener (values)" not in digest_state(state)
