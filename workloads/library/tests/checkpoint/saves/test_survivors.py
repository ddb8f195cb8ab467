"""What a survivor may commit alone: only state that it holds whole, as of the last step, and one
rank only.
"""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from holdfast.checkpoint import Checkpointer, PerRank, Tuning, survivors
from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.survivors import Survivors
from tests.support import commits

STEP = 7


def survivor(
    folder: Path,
    state: dict[str, Any],
    rank: int = 1,
    store: Any = None,
    *,
    last_step: int = -1,
    save_s: float = 0.0,
) -> Survivors:
    cost = SimpleNamespace(persist_s=save_s)
    writer: Any = SimpleNamespace(
        last_step=last_step,
        durable_step=0,
        tuning=Tuning(),
        save_cost=cost,
    )
    return Survivors(folder.as_uri(), "run", state, Ranks(store or HashStore(), rank, 3), writer, 0)


def test_one_survivor_commits_and_the_others_wait_for_it(tmp_path: Path) -> None:
    store = HashStore()
    model = nn.Linear(2, 2)
    for rank in (1, 2):
        assert (
            survivor(tmp_path, {"model": model}, rank, store).commit(
                STEP, {}, "rank 0 is gone", 5.0
            )
            == ""
        )
    assert len(commits(tmp_path)) == 1
    other = nn.Linear(2, 2)
    with Checkpointer(tmp_path, {"model": other}, run="run") as again:
        assert again.step == STEP
        assert torch.equal(other.weight, model.weight)


def sharded() -> nn.Module:
    model = nn.Linear(2, 2)
    model.weight._is_flat_param = True  # pyright: ignore[reportAttributeAccessIssue]
    return model


@pytest.mark.parametrize(
    ("state", "writer", "why"),
    [
        ({"model": sharded()}, {}, "sharded"),
        (
            {
                "model": nn.Linear(2, 2),
                "mine": PerRank({"a": 1}),
            },
            {},
            "state of its own",
        ),
        ({"model": nn.Linear(2, 2)}, {"save_s": 2.0}, "needs 6 s"),
        ({"model": nn.Linear(2, 2)}, {"last_step": STEP}, "rank 0 is gone"),
    ],
    ids=["FSDP", "each its own", "no time", "handed over before"],
)
def test_what_is_not_whole_or_does_not_fit_is_left_alone(
    tmp_path: Path,
    state: dict[str, Any],
    writer: dict[str, Any],
    why: str,
) -> None:
    assert why in survivor(tmp_path, state, **writer).commit(STEP, {}, "rank 0 is gone", 5.0)
    assert commits(tmp_path) == []


def test_a_survivor_that_waits_in_vain_says_so(tmp_path: Path) -> None:
    store = HashStore()
    store.add(f"survivor/{STEP}", 1)
    assert "has not finished" in survivor(tmp_path, {"model": nn.Linear(2, 2)}, 2, store).commit(
        STEP, {}, "gone", 0.2
    )


def test_a_store_on_a_frozen_machine_holds_no_survivor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survivors, "_ANSWER_S", 0.05)
    never = threading.Event()
    store = SimpleNamespace(add=lambda *_: never.wait(60))
    why = survivor(tmp_path, {"model": nn.Linear(2, 2)}, store=store).commit(STEP, {}, "gone", 5.0)
    never.set()
    assert "does not answer" in why and commits(tmp_path) == []


@pytest.mark.parametrize(("what", "same"), [("nothing", True), ("buffers", False), ("data", False)])
def test_what_has_changed_since_the_tick_is_not_the_last_step(
    tmp_path: Path, what: str, same: bool
) -> None:
    model = nn.Sequential(
        nn.Linear(2, 2), nn.BatchNorm1d(2) if what == "buffers" else nn.Identity()
    )
    position = {"batch": 7}
    found = survivor(tmp_path, {"model": model, "position": position})

    def lost() -> None:
        with pytest.raises(RuntimeError), found.computing():
            model(torch.ones(3, 2))
            raise RuntimeError("Connection closed by peer")

    lost()
    assert not found.at_last_step, "no tick before"
    found.ticked()
    position["batch"] += what == "data"
    lost()
    assert found.at_last_step is same
    with found.computing():
        pass
    assert not found.at_last_step, "the optimizer may have stepped since"
