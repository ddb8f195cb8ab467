"""Small parts: cadence, retries, the tree of a state, settings, workers that ignore SIGTERM."""

import copy
import itertools
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.utils.data import DataLoader

from holdfast.checkpoint.cadence import EverySeconds, make_cadence
from holdfast.checkpoint.errors import Denied, StorageError, Transient
from holdfast.checkpoint.save.staging import steady_keys
from holdfast.checkpoint.settings import MIB, Tuning, parse_every
from holdfast.checkpoint.state import capture, checked_state
from holdfast.checkpoint.state.tracking import track
from holdfast.checkpoint.stores.factory import Retrying
from holdfast.checkpoint.stores.storage import Storage
from holdfast.support.errors import InputError
from workloads.library.tests.checkpoint.jobs import Jobs
from workloads.library.tests.checkpoint.made import alone, failing

# -- cadence --


def test_an_interval_is_steps_time_or_auto_and_nothing_else() -> None:
    assert parse_every(7) == ("steps", 7)
    assert parse_every("5m") == ("seconds", 300)
    assert parse_every("1d") == ("seconds", 86_400)
    assert parse_every("auto") == ("auto", 0)
    for wrong in (0, -1, True, "", "5", "5y", "0s", 2.5):
        with pytest.raises(InputError, match="interval"):
            parse_every(wrong)  # pyright: ignore[reportArgumentType]
    cadence = make_cadence(
        parse_every(4),
        lambda: math.inf,
        alone(),
        0,
    )
    for step in range(1, 13):
        assert cadence.due(step) == (step in (4, 8, 12)), step


@pytest.mark.parametrize(("step_s", "interval_s"), [(1.0, 30.0), (0.01, 5.0), (40.0, 30.0)])
def test_seconds_are_kept_within_one_step_with_few_agreements(
    step_s: float, interval_s: float
) -> None:
    now = 0.0
    saves: list[float] = []
    values: list[object] = []

    def agree(value: object, decide: Callable[[list[object]], object]) -> object:
        values.append(value)
        return decide([value])

    ranks: Any = SimpleNamespace(agree=agree)
    cadence = EverySeconds(
        lambda: interval_s,
        ranks,
        0,
        clock=lambda: now,
    )
    for step in range(1, 3001):
        now += step_s
        if cadence.due(step):
            saves.append(now)
            cadence.record_save(step)
    gaps = []
    for a, b in itertools.pairwise(saves):
        gaps.append(b - a)
    for gap in gaps[2:]:
        assert abs(gap - max(interval_s, step_s)) <= step_s * 1.01
    assert len(values) <= 4 * len(saves) + 20


# -- retries --


def put_with_retries(put: Callable[..., None], **options: Any) -> None:
    storage = cast(Storage, SimpleNamespace(read_bytes=1, put=put))
    Retrying(storage, **options).put("n", memoryview(b""), "")


def test_transient_errors_alone_are_tried_again_until_the_budget_ends() -> None:
    pauses = list[float]()
    with pytest.raises(StorageError, match="tried for 10 s"):
        put_with_retries(
            failing(Transient("503")),
            budget_s=10,
            sleep=pauses.append,
            clock=lambda: sum(pauses),
        )
    assert sum(pauses) == pytest.approx(10)
    assert pauses[3] > 2 * pauses[0]
    with pytest.raises(Denied):
        put_with_retries(failing(Denied("403")), budget_s=100, sleep=pytest.fail)


# -- the tree of a state --


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"": {}},
        {"a/b": {}},
        {"__rng__": {}},
    ],
)
def test_entry_names_that_cannot_be_stored_are_refused(state: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="state"):
        checked_state(state)


# -- settings --


@pytest.mark.parametrize(
    "wrong",
    [
        {"shard_bytes": 1},
        {"parallel": 0},
        {"retry_s": -1.0},
        {"min_interval_s": 1e9},
    ],
)
def test_settings_outside_their_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Tuning(**wrong)


def test_short_streams_are_cut_so_that_they_go_in_parallel() -> None:
    tuning = Tuning(shard_bytes=64 * MIB, parallel=8)
    for stream_mib, shard_mib in ((1, 8), (64, 8), (128, 16), (512, 64), (5000, 64)):
        assert tuning.shard_size(stream_mib * MIB) // MIB == shard_mib


def test_a_copied_input_error_has_the_same_lines() -> None:
    error = InputError(
        "what",
        got=1,
        allowed="2",
        fix="3",
    )
    assert copy.copy(error).lines() == error.lines()


# -- shield --


@pytest.mark.process
@pytest.mark.timeout(120)
def test_shielded_workers_live_through_a_sigterm_to_their_group(jobs: Jobs) -> None:
    numbers: Any = range(64)
    loader: DataLoader[int] = DataLoader(
        numbers,
        num_workers=2,
        batch_size=1,
        multiprocessing_context=jobs.context,
    )
    batches: Any = iter(track(loader)._source)
    numbers_before = [int(next(batches)) for _ in range(4)]
    # Sent by another process, like torchrun: workers obey a signal of the trainer itself.
    kill = "import os, signal, sys\nfor pid in sys.argv[1:]: os.kill(int(pid), signal.SIGTERM)"
    subprocess.run(
        [
            sys.executable,
            "-IS",
            "-c",
            kill,
            *(str(w.pid) for w in batches._workers),
        ],
        check=True,
    )
    numbers_after = [int(batch) for batch in batches]
    assert [*numbers_before, *numbers_after] == list(range(64))


LEFT_IN_AN_EPOCH = """
import torch
from holdfast.checkpoint import track
loader = torch.utils.data.DataLoader(range(64), num_workers=2, persistent_workers=True)
batches = iter(track(loader))
print(int(next(batches)))
"""


@pytest.mark.process
@pytest.mark.timeout(200)
def test_a_program_that_leaves_an_epoch_in_its_middle_ends(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:  # no pipe: workers that are left would hold it open
        program = subprocess.Popen(
            [sys.executable, "-c", LEFT_IN_AN_EPOCH], stdout=out, start_new_session=True
        )
        try:
            assert program.wait(100) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    assert (tmp_path / "out").read_text() == "0\n"


# -- what a GPU copies while it computes --


def test_only_what_an_optimizer_changes_is_steady() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model[0].bias.requires_grad_(False)  # a program may change it in a forward pass
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    state = {
        "model": model,
        "optimizer": optimizer,
        "own": {"t": torch.zeros(1)},
    }
    captured = capture(state)
    moments: set[str] = set()
    for key in captured.tensors:
        if key.startswith("optimizer/"):
            moments.add(key)
    weights = {"model/0.weight", "model/1.weight", "model/1.bias"}
    assert moments
    assert steady_keys(state, captured) == weights | moments
