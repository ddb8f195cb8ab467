"""Which sharded state an elastic gang takes: that of the processes of one node, and no other. In
one process.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from holdfast.checkpoint.errors import Preempted, StorageError
from holdfast.support.errors import InputError
from holdfast.training.elastic.gang import ElasticGang
from holdfast.training.errors import CutOff, Expelled, GangTooSmall, GroupLost
from holdfast.training.gang import node as nodes
from holdfast.training.gang.member_addresses import Places
from holdfast.training.gang.node import Node
from workloads.library.tests.training.elastic.gangs import free_ports

pytestmark = pytest.mark.process


@pytest.fixture
def two_processes() -> Iterator[None]:
    """Makes this the first of two processes; torch's fake group simulates the other."""
    dist.init_process_group(
        "fake",
        store=FakeStore(),
        rank=0,
        world_size=2,
    )
    yield
    dist.destroy_process_group()


def shard_model(model: nn.Module) -> None:
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))


def in_replicas(model: nn.Sequential) -> None:
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")))


@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize(
    ("shard", "index", "ranks_per_node", "got"),
    [
        (shard_model, 0, 1, "DTensor over 2 processes, with 1 of a node"),
        (shard_model, 0, 4, "DTensor over 2 processes, with 4 of a node"),
        (lambda model: shard_model(model[0]), 0, 2, "DTensor"),
        (in_replicas, 0, 2, "DTensor"),
        (shard_model, 1, 2, "process 1 is rank 0 of the mesh"),
    ],
)
def test_state_that_a_lost_node_would_lose_is_rejected(
    tmp_path: Path,
    shard: Callable[[nn.Sequential], None],
    index: int,
    ranks_per_node: int,
    got: str,
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    shard(model)
    nodes = tuple(("127.0.0.1", port) for port in free_ports(4))
    places = Places(nodes=nodes, index=index, ranks_per_node=ranks_per_node)
    with pytest.raises(InputError, match="sharded over processes") as refused:
        ElasticGang(
            str(tmp_path),
            {"model": model},
            run="run",
            places=places,
        )
    assert got in refused.value.got
    assert "join_node()" in refused.value.fix
    assert "holdfast train run" in refused.value.fix


@pytest.mark.usefixtures("two_processes")
@pytest.mark.parametrize(
    "error",
    [
        Expelled("out"),
        GroupLost("gone"),
        StorageError("503"),
        Preempted(3),
        GangTooSmall(4, "few"),
        CutOff(5, "torn"),
        InputError("what", got="got", allowed="allowed", fix="fix"),
    ],
)
def test_speakers_error_is_raised_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    sent: list[object] = []
    monkeypatch.setattr(
        nodes, "broadcast_json", lambda value, *_: sent.append(value or sent[0]) or sent[-1]
    )
    first = Node()
    second = Node()
    first.size = second.size = 2
    second.rank = 1

    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        first.agree(fail)
    with pytest.raises(type(error)) as caught:
        second.agree(lambda: pytest.fail("only the first rank may ask"))
    assert str(caught.value) == str(error)
    assert vars(caught.value) == vars(error)
