"""The processes of one node as one member of the gang: they share one state, sharded by FSDP2.

The default process group is the node's for the whole run, since FSDP2 keeps the group that it gets;
`join_node` creates it. One rank, the speaker, talks to other members and broadcasts what it learns.
All ranks vote after each collective of an epoch, so that no rank of a node is ever a step ahead of
another. If a rank is lost, the whole node is.
"""

# Why it is so: infra/decisions/0035.

from collections.abc import Callable, Generator, Iterable
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
from holdfast.checkpoint.ranks import Json, Ranks, decode_failure, encode_failure
from holdfast.checkpoint.state.tensors import as_dtensor
from holdfast.runtime.stop import OneProcessStore
from holdfast.support.errors import InputError
from holdfast.training.errors import CutOff, Expelled, GangTooSmall, GroupLost, NodeLost
from holdfast.training.gang import member_addresses
from holdfast.training.gang.process_group import BACKENDS, broadcast_json, opening
from holdfast.training.tcp_gate import connect_store, host_loopback_store

# A rank waits this long for one that asks other members, restores or computes; a lost rank closes
# its connections, which is noticed at once.
NODE_TIMEOUT = timedelta(days=30)
JOIN_S = 300.0

# Exceptions travel between ranks as JSON, by these names: a pickled exception could run code.
_KINDS: dict[str, type[BaseException]] = {
    "CutOff": CutOff,
    "Expelled": Expelled,
    "GangTooSmall": GangTooSmall,
    "GroupLost": GroupLost,
    "NotDurable": NotDurable,
    "Preempted": Preempted,
    "StorageError": StorageError,
    "Superseded": Superseded,
}


def join_node(device: str = "cpu") -> DeviceMesh:
    """Returns the mesh for `fully_shard`: the processes that `holdfast train ranks` started on this
    node, and no others.

        mesh = join_node("cuda")
        fully_shard(model, mesh=mesh)
    """
    pod = member_addresses.read_places()
    kind = torch.device(device).type
    size = pod.ranks_per_node
    rank = pod.index % pod.ranks_per_node
    store = HashStore()
    if size > 1:
        # The second rank's control port is free: the first rank talks to other members.
        _, port = pod.nodes[pod.index - rank + 1]
        timeout = timedelta(seconds=JOIN_S)
        with opening(port):
            if rank == 0:
                store = host_loopback_store(timeout, port)
            else:
                store = connect_store(port, timeout)
    dist.init_process_group(
        BACKENDS[kind],
        store=PrefixStore("node", store),
        rank=rank,
        world_size=size,
        timeout=NODE_TIMEOUT,
    )
    return init_device_mesh(kind, (size,))


class Node:
    """The ranks of `mesh`, which share one state. Without a mesh, this process alone."""

    def __init__(self, mesh: DeviceMesh | None = None) -> None:
        self.mesh = mesh
        self.rank = mesh.get_rank() if mesh else 0
        self.size = mesh.size() if mesh else 1

    @property
    def is_speaker(self) -> bool:
        """True on the rank that talks to other members."""
        return self.rank == 0

    def ranks(self, *, timeout_s: float) -> Ranks:
        """Returns the ranks that write and read checkpoints together.

        Every rank has to call it equally often.
        """
        if self.size > 1:
            return Ranks.of_job(timeout_s=timeout_s)
        return Ranks(OneProcessStore(), 0, 1)

    def vote(self, count: int = 0) -> AbstractContextManager[list[int]]:
        """Makes the collectives of the block succeed on all ranks of the node or on none.

        Raises GroupLost on all if they failed on one. The block may put `count` numbers into the
        list; after it, the list has the maximum of each over the ranks.
        """
        if self.size == 1:
            return nullcontext([])
        return self._vote(count)

    @contextmanager
    def _vote(self, count: int) -> Generator[list[int]]:
        numbers: list[int] = []
        try:
            yield numbers
        except (GroupLost, RuntimeError):
            # The other ranks wait in this vote, also for a rank that failed, with as many numbers.
            self.reduce_max([1] + [0] * count)
            raise
        failed, *maxima = self.reduce_max([0, *numbers])
        numbers[:] = maxima
        if failed:
            raise GroupLost("another rank of this node lost a member")

    def reduce_max(self, numbers: list[int]) -> list[int]:
        """Returns the maximum of each number over the ranks of the node. A collective."""
        if self.size == 1:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.int64)
        with _detect_lost_rank():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return [int(number) for number in tensor.tolist()]

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Sums tensors over the ranks of the node, in place. A collective."""
        if self.size == 1:
            return
        with _detect_lost_rank():
            for tensor in tensors:
                dist.all_reduce(tensor)

    def agree(self, decide: Callable[[], Json]) -> Json:
        """Calls `decide` on the speaker and returns its result on all ranks. A collective.

        An InputError, CheckpointExit, Expelled, GroupLost or StorageError of `decide` is raised on
        all ranks. Raises NodeLost if a rank of the node was lost.
        """
        if self.size == 1:
            return decide()
        answer: dict[str, Any] = {}
        if self.is_speaker:
            try:
                answer = {"value": decide()}
            except (InputError, *_KINDS.values()) as error:
                answer = _encode_error(error)
        with _detect_lost_rank():
            answer = broadcast_json(
                answer,
                0,
                torch.device("cpu"),
                dist.group.WORLD,
            )
        if "value" not in answer:
            raise _decode_error(answer)
        return answer["value"]

    def make_dtensor(
        self,
        local: Tensor,
        shape: list[int],
        stride: list[int],
        dim: int,
    ) -> Tensor:
        """Returns a DTensor over the node's mesh with this rank's part, sharded along `dim`.

        With `dim` -1 each rank has the whole tensor.
        """
        # Imported late: a gang whose members hold whole states never needs it, and it takes long.
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
def _detect_lost_rank() -> Generator[None]:
    """Turns a RuntimeError of a collective of the node into NodeLost."""
    try:
        yield
    except RuntimeError as error:
        raise NodeLost(0, f"another rank of this node was lost: {str(error)[:160]}") from error


def _encode_error(error: BaseException) -> dict[str, Any]:
    if isinstance(error, InputError):
        return encode_failure(error)
    name = next(name for name, kind in _KINDS.items() if isinstance(error, kind))
    arguments: list[Any] = [str(error)]
    if isinstance(error, CheckpointExit):
        arguments = [error.step, error.reason]
    return {
        "kind": name,
        "given": arguments,
    }


def _decode_error(answer: dict[str, Any]) -> BaseException:
    if "input" in answer:
        return decode_failure(answer)
    kind = _KINDS[answer["kind"]]
    return kind(*answer["given"])


def find_node(
    parameters: list[nn.Parameter],
    ranks_per_node: int,
    index: int,
) -> Node:
    """Returns the ranks that share the state of these parameters.

    Raises InputError unless they are this process alone or all processes of its node.
    """
    sharded_parameters = [p for p in parameters if type(p.data) is not Tensor]
    if not sharded_parameters:
        return Node()
    mesh = _find_common_mesh(parameters)
    is_over_node = mesh is not None and mesh.size() == dist.get_world_size() == ranks_per_node
    if not is_over_node:
        first_sharded = sharded_parameters[0].data
        sharding = type(first_sharded).__name__
        first_mesh = getattr(as_dtensor(parameters[0].data), "device_mesh", None)
        if first_mesh:
            sharding += f" over {first_mesh.size()} processes"
        raise _make_sharding_error(f"{sharding}, with {ranks_per_node} of a node")
    node = Node(mesh)
    # A mesh over the same number of processes of different nodes would be lost with any of them.
    first_index = index - node.rank
    bounds = [first_index, -first_index]
    if node.reduce_max(bounds) != bounds or first_index % ranks_per_node:
        raise _make_sharding_error(
            f"processes of different nodes: process {index} is rank {node.rank} of the mesh"
        )
    return node


def _find_common_mesh(parameters: list[nn.Parameter]) -> DeviceMesh | None:
    """Returns the mesh over which all parameters are sharded in one dimension, if there is one."""
    mesh: DeviceMesh | None = None
    for parameter in parameters:
        sharded = as_dtensor(parameter.data)
        if sharded is None:
            return None
        if mesh is None:
            mesh = sharded.device_mesh
        if sharded.device_mesh != mesh or len(sharded.placements) != 1:
            return None
        if not sharded.placements[0].is_shard():
            return None
    return mesh


def _make_sharding_error(got: str) -> InputError:
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


def collect_modules(state: dict[str, Any]) -> list[nn.Module]:
    """Returns the modules of `state`."""
    return [entry for entry in state.values() if isinstance(entry, nn.Module)]


def collect_parameters(state: dict[str, Any]) -> list[nn.Parameter]:
    """Returns the parameters of all modules of `state`.

    Raises InputError if there are none, or all are frozen.
    """
    parameters = list[nn.Parameter]()
    for module in collect_modules(state):
        parameters += module.parameters()
    if not parameters:
        raise InputError(
            "nothing to train",
            got="no nn.Module in the state",
            allowed="at least one",
            fix='{"model": model, ...}',
        )
    if not any(parameter.requires_grad for parameter in parameters):
        raise InputError(
            "nothing to train",
            got=f"{len(parameters)} parameters, all of them frozen",
            allowed="at least one parameter with requires_grad",
            fix="freeze the base only, and create adapters before the gang",
        )
    return parameters
