"""Gangs with several ranks on one GPU, over gloo: nccl wants a GPU for each rank."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from workloads.library.tests.gpu.test_training import uses_gpu
from workloads.library.tests.processes import family
from workloads.library.tests.training.elastic.gangs import Gang
from workloads.library.tests.training.elastic.sharded_gangs import ShardedGang

pytestmark = pytest.mark.gpu
Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as stack:

        def gang(kind: type[Any], name: str, *arguments: None, **settings: Any) -> Any:
            return stack.enter_context(
                closing(kind(tmp_path / name, *arguments, device="cuda", **settings))
            )

        yield gang


def test_sharded_gang_restores_a_lost_node_from_memory_bit_exact(make: Make) -> None:
    undisturbed = make(ShardedGang, "undisturbed", None, nodes=2, copies=0)
    undisturbed.start(0, 1)
    gang = make(ShardedGang, "gang", None, nodes=2, gate_step=15)
    gang.start(0, 1)
    assert undisturbed.all_ended() == [0, 0], undisturbed.logs()
    gang.until(lambda: gang.has_copied(15))
    launcher, *below = family(gang.processes[0].pid)
    assert any(uses_gpu(process.pid) for process in below)
    assert not uses_gpu(launcher.pid)
    gang.lose(1)
    for shard in gang.shards_in_bucket():
        shard.unlink()
    gang.open_gate()
    gang.start(1)
    assert gang.all_ended() == [0, 0], gang.logs()
    assert [(event["step"], event["source"]) for event in gang.of("restore")] == [
        (0, "store"),
        (15, "memory"),
    ]
    assert gang.digest == undisturbed.digest


def test_elastic_gang_survives_a_death_and_grows_back_bit_exact(make: Make) -> None:
    undisturbed = make(Gang, "undisturbed", nodes=1)
    undisturbed.start(0)
    gang = make(Gang, "gang", nodes=2, backend="gloo", gate_step=25)
    gang.start(0)
    gang.start(1, kill_at="gang.reduce:12")
    assert gang.ended(1) == -signal.SIGKILL, gang.logs()
    gang.until(lambda: 1 in gang.sizes())
    gang.start(1)
    gang.until(lambda: gang.has_come(1))
    gang.open_gate()
    assert undisturbed.ended(0) == 0, undisturbed.logs()
    gang.ends_with(*undisturbed.digests(), 2, 1, 2)
