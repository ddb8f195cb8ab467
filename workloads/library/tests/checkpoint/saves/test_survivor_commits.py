"""Commits of a survivor: only whole state, as of the last step, and of one rank only."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from holdfast.checkpoint import Checkpointer, PerRank, Tuning
from holdfast.checkpoint.cadence import Hazard, SaveCostModel
from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.state import capture, without_streams
from holdfast.checkpoint.state.tensors import make_pieces, stream_bytes
from holdfast.checkpoint.stores import LocalStorage, put_new
from holdfast.checkpoint.survivor_commits import SurvivorCommits
from holdfast.support import object_names
from tests.support import commits
from workloads.library.tests.checkpoint.jobs import (
    RUN,
    STEPS,
    TUNING,
    WIDTH,
    Jobs,
    build,
    finish,
    newest,
    set_up,
)
from workloads.library.tests.checkpoint.made import failing
from workloads.library.tests.training.elastic.gangs import free_ports

State = dict[str, Any]
STEP = 7
PEER = "rank 0 was lost"


def count_bytes(state: State) -> int:
    """Returns how many bytes a rank stores if it stores the whole state alone."""
    return stream_bytes(make_pieces(without_streams(capture(state)), 0, 1))


def make_cost(*saves: tuple[float, int, int]) -> SaveCostModel:
    """Returns the costs after saves: the seconds, the bytes, and those that are stored once."""
    cost = SaveCostModel(Hazard(), floor_s=1.0, ceiling_s=60.0)
    for seconds, written_bytes, once_bytes in saves:
        cost.observe_save(seconds, written_bytes, once_bytes)
    return cost


def survivor(
    folder: Path,
    state: State,
    rank: int = 1,
    store: Any = None,
    *,
    last_step: int = -1,
    cost: SaveCostModel | None = None,
) -> SurvivorCommits:
    writer: Any = SimpleNamespace(
        last_step=last_step,
        durable_step=0,
        tuning=Tuning(),
        save_cost=cost or make_cost(),
    )
    return SurvivorCommits(
        folder.as_uri(),
        "run",
        state,
        Ranks(store or HashStore(), rank, 3),
        writer,
        0,
    )


def test_one_survivor_commits_and_the_others_wait_for_it(tmp_path: Path) -> None:
    store = HashStore()
    model = nn.Linear(2, 2)
    for rank in (1, 2):
        commits_of_rank = survivor(
            tmp_path,
            {"model": model},
            rank,
            store,
        )
        assert (
            commits_of_rank.commit(
                STEP,
                {},
                PEER,
                60.0,
            )
            == ""
        )
    assert len(commits(tmp_path)) == 1
    other = nn.Linear(2, 2)
    with Checkpointer(tmp_path, {"model": other}, run="run") as ckpt:
        assert ckpt.step == STEP
        assert torch.equal(other.weight, model.weight)


def make_sharded_model() -> nn.Module:
    model = nn.Linear(2, 2)
    model.weight._is_flat_param = True  # pyright: ignore[reportAttributeAccessIssue]
    return model


@pytest.mark.parametrize(
    ("state", "writer", "reason"),
    [
        ({"model": make_sharded_model()}, {}, "sharded"),
        (
            {
                "model": nn.Linear(2, 2),
                "mine": PerRank({"a": 1}),
            },
            {},
            "its own state",
        ),
        ({"model": nn.Linear(2, 2)}, {"last_step": STEP}, PEER),
    ],
    ids=["FSDP", "each its own", "handed over before"],
)
def test_a_state_that_is_not_whole_or_was_handed_over_is_not_committed(
    tmp_path: Path,
    state: State,
    writer: State,
    reason: str,
) -> None:
    assert reason in survivor(tmp_path, state, **writer).commit(
        STEP,
        {},
        PEER,
        5.0,
    )
    assert commits(tmp_path) == []


BASE_WIDTH = 3072
"""A third of such a layer is larger than the smallest object."""


def make_adapted_model() -> tuple[nn.Module, int]:
    """Returns a model with a frozen base and a small adapter, and the bytes of the base."""
    base = nn.Linear(BASE_WIDTH, BASE_WIDTH)
    base.requires_grad_(False)
    return nn.Sequential(base, nn.Linear(BASE_WIDTH, 1)), count_bytes({"model": base})


@pytest.mark.parametrize(
    ("first_save_s", "is_committed"), [(30.0, False), (1.0, True)], ids=["no time", "time"]
)
def test_time_to_store_the_frozen_base_again_is_counted(
    tmp_path: Path, first_save_s: float, is_committed: bool
) -> None:
    """The base is in the store in parts of three ranks. One rank alone stores all of it again."""
    model, base_bytes = make_adapted_model()
    state = {"model": model}
    own_base = base_bytes // 3
    own_adapter = (count_bytes(state) - base_bytes) // 3
    cost = make_cost(
        (first_save_s, own_base + own_adapter, own_base),
        (0.05, own_adapter, 0),
    )
    assert cost.persist_s == 0.05
    reason = survivor(tmp_path, state, cost=cost).commit(STEP, {}, PEER, 60.0)
    assert bool(commits(tmp_path)) is is_committed
    assert bool(reason) is not is_committed
    if reason:
        assert "one rank needs 90 s to store it, and 60 s are left" in reason


def test_few_stored_bytes_do_not_rule_out_many(tmp_path: Path) -> None:
    """Ranks store whole tensors here, so one of them may have stored only a few bytes."""
    state: State = {"model": nn.Linear(BASE_WIDTH, BASE_WIDTH)}
    cost = make_cost((0.2, 4 * BASE_WIDTH, 0))
    assert not survivor(tmp_path, state, cost=cost).commit(STEP, {}, PEER, 60.0)
    assert commits(tmp_path)


def test_state_that_was_never_saved_is_tried(tmp_path: Path) -> None:
    reason = survivor(tmp_path, {"model": nn.Linear(2, 2)}).commit(STEP, {}, PEER, 60.0)
    assert not reason


def test_a_survivor_that_waits_in_vain_returns_the_reason(tmp_path: Path) -> None:
    claim = object_names.survivor_object("run", 0, STEP)
    put_new(LocalStorage.open(str(tmp_path)), claim, b"2 of a rank that was killed")
    waiting = survivor(tmp_path, {"model": nn.Linear(2, 2)}, 1)
    assert "has not finished" in waiting.commit(
        STEP,
        {},
        PEER,
        0.2,
    )


def test_a_survivor_does_not_ask_the_lost_store(tmp_path: Path) -> None:
    store = SimpleNamespace(add=failing(OSError("gone")), check=failing(OSError("gone")))
    commits_of_rank = survivor(tmp_path, {"model": nn.Linear(2, 2)}, store=store)
    reason = commits_of_rank.commit(
        STEP,
        {},
        PEER,
        60.0,
    )
    assert not reason
    assert len(commits(tmp_path)) == 1


def lose_rank_0(rank: int, world: int, port: int, folder: str) -> None:
    """Runs one rank of a job whose rank 0, which keeps torch's store, dies in step 4."""
    set_up(rank, world, "", {"meet": f"tcp://127.0.0.1:{port}", "log": f"{folder}/log"})
    state = build()
    torch.manual_seed(5)
    with Checkpointer(
        f"{folder}/url",
        state,
        run=RUN,
        every=10**9,
        window_s=90.0,
        tuning=TUNING,
    ) as ckpt:
        for step in range(ckpt.step, STEPS):
            with ckpt.computing():
                loss = state["model"](torch.randn(4, WIDTH)).square().mean()
                state["optimizer"].zero_grad()
                loss.backward()
                if rank == 0 and step == 4:
                    os.kill(os.getpid(), signal.SIGKILL)
                dist.barrier()
            state["optimizer"].step()
            state["progress"]["at"] += 1
            ckpt.tick(step + 1)


@pytest.mark.process
def test_last_step_is_committed_without_rank_0(jobs: Jobs, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    ranks: list[Any] = []
    for rank in range(3):
        arguments = (rank, 3, port, str(tmp_path))
        ranks.append(jobs.context.Process(target=lose_rank_0, args=arguments))
    for process in ranks:
        process.start()
    codes = finish(ranks)
    assert codes[0] == -signal.SIGKILL
    assert 0 not in codes
    assert newest(tmp_path / "url") == 4, (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("change", "is_last_step"), [("nothing", True), ("buffers", False), ("data", False)]
)
def test_a_state_that_has_changed_since_the_tick_is_not_the_last_step(
    tmp_path: Path,
    change: str,
    is_last_step: bool,
) -> None:
    normalization = nn.BatchNorm1d(2) if change == "buffers" else nn.Identity()
    model = nn.Sequential(nn.Linear(2, 2), normalization)
    position = {"batch": 7}
    survivor_commits = survivor(tmp_path, {"model": model, "position": position})

    def lose_peer() -> None:
        with pytest.raises(RuntimeError), survivor_commits.computing():
            model(torch.ones(3, 2))
            raise RuntimeError("Connection closed by peer")

    lose_peer()
    assert not survivor_commits.at_last_step, "no tick before"
    survivor_commits.tick()
    position["batch"] += change == "data"
    lose_peer()
    assert survivor_commits.at_last_step is is_last_step
    with survivor_commits.computing():
        pass
    assert not survivor_commits.at_last_step, "the optimizer may have stepped since"
