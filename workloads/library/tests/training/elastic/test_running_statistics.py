"""Tests that running statistics are those of all shards, for any division over members."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import nn

from holdfast.support.errors import InputError
from holdfast.training.gang.running_statistics import RunningStatistics
from workloads.library.tests.training.elastic.test_elastic_gang import one_node

SHARDS = 6


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2), nn.BatchNorm1d(2, momentum=None))


def make_statistics(model: nn.Module, *, exact: bool = True) -> RunningStatistics:
    return RunningStatistics(
        [model],
        shards=SHARDS,
        exact=exact,
        is_batch_over_ranks=False,
    )


def make_inputs(shard: int) -> torch.Tensor:
    draws = torch.Generator().manual_seed(shard)
    return 10.0 * torch.randn(4, 3, generator=draws) + shard


def take_step(model: nn.Module, groups: Sequence[Sequence[int]]) -> list[bytes]:
    """Does a step of a member for each group of shards; returns each one's buffers after it."""
    members = [deepcopy(model) for _ in groups]
    statistics = [make_statistics(member) for member in members]
    for member, sums, shards in zip(members, statistics, groups, strict=True):
        sums.begin_step()
        for shard in shards:
            sums.begin_shard()
            member(make_inputs(shard))
            sums.add_shard()
    total = sum(sums.sums[0] for sums in statistics)
    for sums in statistics:
        sums.sums[0].copy_(total)
        sums.end_step()
    return [hash_buffers(member) for member in members]


def hash_buffers(model: nn.Module) -> bytes:
    return b"".join(buffer.numpy().tobytes() for buffer in model.buffers())


@pytest.mark.parametrize("groups", [[[0, 1, 2], [3, 4, 5]], [[0], [1, 2], [5, 4, 3]]])
def test_all_members_have_the_same_buffers_as_a_single_one(groups: list[list[int]]) -> None:
    whole = take_step(make_model(), [range(SHARDS)])
    assert take_step(make_model(), groups) == whole * len(groups)


def test_a_step_updates_the_buffers_once_by_the_mean_over_its_shards(tmp_path: Path) -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    means: list[torch.Tensor] = []
    variances: list[torch.Tensor] = []
    with one_node(tmp_path, model, shards=SHARDS, exact=True) as gang:
        # The first try of a step does not fit the exact sum, and changes nothing.
        for step in gang.steps(1):
            means.clear()
            variances.clear()
            for shard in gang.shards():
                inputs = make_inputs(shard)
                means.append(inputs.mean(0))
                variances.append(inputs.var(0))
                loss = model(inputs).square().sum()
                gang.backward(100 * loss)
            gang.reduce()
            assert step == 0
    buffers = dict(model[0].named_buffers())
    mean = torch.stack(means).mean(0)
    variance = torch.stack(variances).mean(0)
    torch.testing.assert_close(buffers["running_mean"], 0.1 * mean)
    torch.testing.assert_close(buffers["running_var"], 0.9 + 0.1 * variance)
    assert buffers["num_batches_tracked"] == 1


def test_a_step_that_is_not_applied_leaves_the_buffers_as_they_were() -> None:
    model = make_model()
    before = hash_buffers(model)
    statistics = make_statistics(model)
    statistics.begin_step()
    statistics.begin_shard()
    model(make_inputs(0))
    assert hash_buffers(model) != before
    statistics.abandon_step()
    assert hash_buffers(model) == before


def test_a_statistic_that_is_not_finite_is_nan_on_every_member() -> None:
    model = make_model()
    statistics = make_statistics(model)
    statistics.begin_step()
    statistics.begin_shard()
    model(make_inputs(0) * torch.tensor([1.0, torch.inf, 1.0]))
    statistics.add_shard()
    statistics.end_step()
    first = dict(model[0].named_buffers())  # pyright: ignore[reportIndexIssue]
    assert first["running_mean"].isnan().tolist() == [False, True, False]


class Counting(nn.Module):
    """Counts its forward passes in a buffer."""

    calls: torch.Tensor

    def __init__(self, count: Callable[["Counting"], object] | None = None) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.weight = nn.Parameter(torch.ones(()))
        self._count = count or count_in_place

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self._count(self)
        return values * self.weight


def count_in_place(model: Counting) -> None:
    model.calls += 1


def count_in_data(model: Counting) -> None:
    model.calls.data.add_(1)


def count_in_new_tensor(model: Counting) -> None:
    model.calls = model.calls + 1


def leave_as_it_is(_: Counting) -> None:
    """A constant."""


def grow(model: Counting) -> None:
    """Replaces a cache that became too small."""
    model.calls = torch.zeros(5)


@pytest.mark.parametrize("count", [count_in_place, count_in_data, count_in_new_tensor])
def test_all_ways_to_change_a_buffer_are_refused(count: Callable[[Counting], object]) -> None:
    model = Counting(count)
    statistics = make_statistics(model)
    statistics.begin_step()
    statistics.begin_shard()
    model(make_inputs(0))
    with pytest.raises(InputError, match="buffer calls of the model"):
        statistics.add_shard()


@pytest.mark.parametrize("count", [leave_as_it_is, grow])
def test_constant_buffers_are_accepted(
    count: Callable[[Counting], object],
) -> None:
    models = [Counting(count), Counting(count)]
    models[0].calls.fill_(7)  # as a restore does
    statistics = RunningStatistics(models, shards=SHARDS, exact=True, is_batch_over_ranks=False)
    statistics.begin_step()
    statistics.begin_shard()
    for model in models:
        model(make_inputs(0))
    statistics.add_shard()
    assert not statistics.is_active


def test_other_buffers_that_change_are_refused_by_name(tmp_path: Path) -> None:
    model = Counting()
    for exact, count in ((False, 0), (True, 1)):
        refused = 0
        with one_node(tmp_path / str(exact), model, shards=2, exact=exact) as gang:
            for _ in gang.steps(1):
                for _ in gang.shards():
                    try:
                        gang.backward(model(torch.ones(2)).sum())
                    except InputError as error:
                        assert "buffer calls of the model" in str(error.got)
                        refused += 1
                gang.reduce()
        assert refused == count


def test_batches_over_ranks_are_refused_if_sums_are_exact() -> None:
    model = nn.Sequential(nn.SyncBatchNorm(3))
    RunningStatistics(
        [model],
        shards=2,
        exact=False,
        is_batch_over_ranks=True,
    )
    with pytest.raises(InputError, match="SyncBatchNorm depends on the gang's size"):
        RunningStatistics(
            [model],
            shards=2,
            exact=True,
            is_batch_over_ranks=True,
        )
