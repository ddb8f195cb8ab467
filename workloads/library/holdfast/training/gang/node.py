"""The processes of one node as one member of the gang: they share one state, sharded over them by
FSDP2.

The default process group is the node's, for life, since FSDP2 keeps the group that it was given;
`join_node` makes it. One rank speaks for the node to other members. The others hear from it what it
found, and all vote after each collective of an epoch, so that no rank of a node is ever a step
ahead of another. A rank that is lost takes its node along.
"""

# Why it is so: infra/decisions/0035.

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import (
    HashStore,  # pyright: ignore[reportPrivateImportUsage]
    PrefixStore,  # pyright: ignore[reportPrivateImportUsage]
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from holdfast.checkpoint.errors import (
    CheckpointExit,
    NotDurable,
    Preempted,
    StorageError,
    Superseded,
)
from holdfast.checkpoint.parts import Json, Ranks, as_dtensor, error_of, failure_of
from holdfast.runtime.stop import OneProcessStore
from holdfast.support.errors import InputError
from holdfast.training.errors import CutOff, Expelled, GangTooSmall, GroupLost, NodeLost
from holdfast.training.gang import member_addresses
from holdfast.training.gang.process_group import BACKENDS, broadcast_json, opening
from holdfast.training.tcp_gate import connect_store, host_loopback_store

# A rank waits here for one that asks other members, restores or computes; one that is gone is
# noticed at once.
FOR_LIFE = timedelta(days=30)
JOIN_S = 300.0

# By name, as they go between ranks as JSON: a pickled exception could run code.
_KINDS: dict[str, type[BaseException]] = {
    kind.__name__: kind
    for kind in (
        CutOff,
        Expelled,
        GangTooSmall,
        GroupLost,
        NotDurable,
        Preempted,
        StorageError,
        Superseded,
    )
}


def join_node(device: str = "cpu") -> DeviceMesh:
    """The mesh for `fully_shard`: the processes that `holdfast train ranks` has started on this
    node, and no other.
    """
    pod = member_addresses.read_places()
    kind = torch.device(device).type
    size = pod.ranks_per_node
    rank = pod.index % pod.ranks_per_node
    store = HashStore()
    if size > 1:
        # The second rank's port for questions, which stays unused: the first one speaks for the
        # node.
        _, port = pod.nodes[pod.index - rank + 1]
        timeout = timedelta(seconds=JOIN_S)
        with opening(port):
            store = connect_store(port, timeout) if rank else host_loopback_store(timeout, port)
    dist.init_process_group(
        BACKENDS[kind],
        store=PrefixStore("node", store),
        rank=rank,
        world_size=size,
        timeout=FOR_LIFE,
    )
    return init_device_mesh(kind, (size,))


class Node:
    """Without a mesh: this process alone, which holds the whole state."""

    def __init__(self, mesh: DeviceMesh | None = None) -> None:
        self.mesh = mesh
        self.rank, self.size = (0, 1) if mesh is None else (mesh.get_rank(), mesh.size())

    @property
    def speaks(self) -> bool:
        return self.rank == 0

    def ranks(self, *, timeout_s: float) -> Ranks:
        """For the checkpoints that they write and read together. Ask equally often on every rank."""
        if self.size > 1:
            return Ranks.of_job(timeout_s=timeout_s)
        return Ranks(OneProcessStore(), 0, 1)

    def together(self, count: int = 0) -> AbstractContextManager[list[int]]:
        """Collectives of an epoch, that succeed on all ranks of the node or on none: else
        GroupLost.

        Numbers that the block puts into the list are the largest of the node's after it.
        """
        return self._voted(count) if self.size > 1 else nullcontext([])

    @contextmanager
    def _voted(self, count: int) -> Generator[list[int]]:
        numbers: list[int] = []
        try:
            yield numbers
        except (GroupLost, RuntimeError):
            # The other ranks wait in this vote, also for one that failed, and with as many numbers.
            self.largest([1] + [0] * count)
            raise
        lost, *numbers[:] = self.largest([0, *numbers])
        if lost:
            raise GroupLost("another rank of this node lost a member")

    def largest(self, numbers: list[int]) -> list[int]:
        if self.size == 1:
            return numbers
        found = torch.tensor(numbers, dtype=torch.int64)
        with _with_the_others():
            dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return [int(number) for number in found.tolist()]

    def decided(self, decide: Callable[[], Json]) -> Json:
        """What the rank that speaks has found, on all; what it raises (InputError, CheckpointExit,
        Expelled, GroupLost, StorageError), on all. Raises NodeLost where a rank of the node is
        gone.
        """
        if self.size == 1:
            return decide()
        answer: dict[str, Any] = {}
        if self.speaks:
            try:
                answer = {"value": decide()}
            except (InputError, *_KINDS.values()) as error:
                answer = _described(error)
        with _with_the_others():
            answer = broadcast_json(answer, 0, torch.device("cpu"), dist.group.WORLD)
        if "value" not in answer:
            raise _raised(answer)
        return answer["value"]

    def sharded(
        self,
        local: Tensor,
        shape: list[int],
        stride: list[int],
        dim: int,
    ) -> Tensor:
        """A DTensor of this node's; `dim` -1: each rank has all of it."""
        # Late: a gang whose members hold whole states never needs it, and its import takes long.
        from torch.distributed.tensor import DTensor, Replicate, Shard

        assert self.mesh
        placement = Replicate() if dim < 0 else Shard(dim)
        return DTensor.from_local(
            local,
            self.mesh,
            [placement],
            run_check=False,
            shape=torch.Size(shape),
            stride=tuple(stride),
        )


ALONE = Node()


@contextmanager
def _with_the_others() -> Generator[None]:
    try:
        yield
    except RuntimeError as error:
        raise NodeLost(0, f"another rank of this node is gone: {str(error)[:160]}") from error


def _described(error: BaseException) -> dict[str, Any]:
    if isinstance(error, InputError):
        return failure_of(error)
    kind = next(name for name, kind in _KINDS.items() if isinstance(error, kind))
    return {
        "kind": kind,
        "given": [error.step, error.reason] if isinstance(error, CheckpointExit) else [str(error)],
    }


def _raised(answer: dict[str, Any]) -> BaseException:
    if "input" in answer:
        return error_of(answer)
    return _KINDS[answer["kind"]](*answer["given"])


def node_of(parameters: list[nn.Parameter], ranks_per_node: int, index: int) -> Node:
    """Of those who share the state of these parameters. Raises InputError unless that is this
    process or its node.
    """
    odd = next((p for p in parameters if type(p.data) is not Tensor), None)
    if odd is None:
        return Node()
    shards = [as_dtensor(p.data) for p in parameters]
    mesh = getattr(shards[0], "device_mesh", None)
    over_node = all(
        s is not None
        and s.device_mesh == mesh
        and len(s.placements) == 1
        and s.placements[0].is_shard()
        for s in shards
    )
    if not (
        over_node and mesh is not None and mesh.size() == dist.get_world_size() == ranks_per_node
    ):
        if mesh:
            over = f"{type(odd.data).__name__} over {mesh.size()} processes"
        else:
            over = type(odd.data).__name__
        raise _sharded_otherwise(f"{over}, with {ranks_per_node} of a node")
    node = Node(mesh)
    # Their places, node by node: a mesh over the same number of processes of other nodes would be
    # lost with any of them.
    first = index - node.rank
    if node.largest([first, -first]) != [first, -first] or first % ranks_per_node:
        raise _sharded_otherwise(
            f"processes of different nodes: place {index} as rank {node.rank} of the mesh"
        )
    return node


def _sharded_otherwise(got: str) -> InputError:
    return InputError(
        "the model is sharded over processes",
        got=got,
        allowed=(
            "whole parameters on every process, or all parameters sharded by fully_shard over the"
            " processes of one node: otherwise a lost node has shards that no other node has"
        ),
        fix=(
            "mesh = join_node(), then fully_shard(model, mesh=mesh) under `holdfast train ranks`;"
            " or a rigid gang: holdfast train run"
        ),
    )


def parameters_of(state: dict[str, Any]) -> list[nn.Parameter]:
    """Of all modules. Raises InputError where there is none."""
    modules = [entry for entry in state.values() if isinstance(entry, nn.Module)]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    if not parameters:
        raise InputError(
            "nothing to train",
            got="no nn.Module in the state",
            allowed="at least one",
            fix='{"model": model, ...}',
        )
    return parameters
