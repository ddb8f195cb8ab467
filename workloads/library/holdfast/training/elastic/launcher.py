"""Starts a program once for each GPU of a node, for elastic gangs: `holdfast train ranks
--processes 4 -- COMMAND`.

torchrun's agent exits with 1 whatever its workers exit with, and an Indexed Job counts that as a
crash of the node. This launcher forwards a notice to all ranks, which leave together, and combines
their exit codes. The ranks are forked from a process that has imported torch.

In a gang of a fixed size each rank also gets its number among all ranks and the address of the
first one, as under torchrun.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from holdfast.runtime.gpu import parse_gpu_count
from holdfast.runtime.shutdown import Shutdown
from holdfast.support.errors import InputError
from holdfast.support.values import between
from holdfast.training.gang.forked_ranks import ForkedRanks
from holdfast.training.gang.member_addresses import MAX_NODES, MAX_RANKS
from holdfast.vocabulary import exit_codes
from holdfast.vocabulary.environment import ENV_LOCAL_RANK, ENV_LOCAL_WORLD_SIZE

MAX_PORT = 65_535
PROCESSES = "NPROC_PER_NODE"
ONE_FOR_EACH_GPU = ("auto", "gpu")
"""Numbers of processes that torchrun counts itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedGroup:
    """The nodes of a gang of a fixed size, and where their ranks meet."""

    nodes: int
    node: int
    """Number of this node."""
    address: str
    port: int

    def __post_init__(self) -> None:
        between("NNODES", self.nodes, 1, MAX_NODES)
        between("NODE_RANK", self.node, 0, self.nodes - 1)
        between("MASTER_PORT", self.port, 1, MAX_PORT)

    def variables(self, local_rank: int, processes: int) -> dict[str, str]:
        """Returns the variables of a rank from which torch.distributed makes its group."""
        return {
            "RANK": str(self.node * processes + local_rank),
            "WORLD_SIZE": str(self.nodes * processes),
            "GROUP_RANK": str(self.node),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


def read_group(variables: Mapping[str, str]) -> FixedGroup:
    """Reads the gang from the variables of torchrun's options. Raises InputError."""
    return FixedGroup(
        nodes=_read_number(variables, "NNODES"),
        node=_read_number(variables, "NODE_RANK"),
        address=_read(variables, "MASTER_ADDR"),
        port=_read_number(variables, "MASTER_PORT"),
    )


def read_processes(variables: Mapping[str, str]) -> int:
    """Reads the number of processes of a node. Raises InputError."""
    name = PROCESSES
    if _read(variables, name) not in ONE_FOR_EACH_GPU:
        return _read_number(variables, name)
    count = parse_gpu_count(variables)
    if not count:
        raise InputError(
            f"{name} names no number, and the pod was promised no GPU",
            got=_read(variables, name),
            allowed="a number of processes",
            fix="holdfast train ranks --processes 4",
        )
    return count


def _read(variables: Mapping[str, str], name: str) -> str:
    """Returns a variable of torchrun, which reads it with the prefix PET_."""
    value = variables.get(f"PET_{name}") or variables.get(name, "")
    if not value:
        fix = "set it, or leave --torchrun out for a program of one node"
        if name == PROCESSES:
            fix = "holdfast train ranks --processes 4"
        raise InputError(
            f"{name} is not set",
            got="nothing",
            allowed=f"PET_{name} or {name}, as torchrun takes it",
            fix=fix,
        )
    return value


def _read_number(variables: Mapping[str, str], name: str) -> int:
    text = _read(variables, name)
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise InputError(
            f"{name} is no number",
            got=text[:100],
            allowed="0, 1, 2 ...: a range is for elastic gangs",
            fix="set the size that the gang has",
        )
    return int(text)


def run_ranks(
    command: Sequence[str],
    processes: int,
    shutdown: Shutdown,
    *,
    window_s: float,
    group: FixedGroup | None = None,
) -> int:
    """Runs all ranks to their end and returns the exit code of the node.

    A rank that fails stops the others cleanly. Without a group a rank knows its number on the node
    only. Raises InputError if the program cannot be started.
    """
    between("processes of a node", processes, 1, MAX_RANKS, fix="one for each GPU")
    ranks = ForkedRanks(command)
    exit_queue = SimpleQueue[int | None]()
    environments = list[dict[str, str]]()
    for local_rank in range(processes):
        variables = {
            ENV_LOCAL_RANK: str(local_rank),
            ENV_LOCAL_WORLD_SIZE: str(processes),
        }
        if group is not None:
            variables |= group.variables(local_rank, processes)
        environments.append(variables)
    ranks.start(environments, exit_queue)
    threading.Thread(
        target=ranks.forward_notice,
        args=(shutdown, window_s),
        daemon=True,
    ).start()
    codes: list[int] = []
    failed = False
    for _ in range(processes):
        code = exit_queue.get() or 0
        # Ranks that are stopped because of a failure exit as preempted, which no Job counts.
        if not failed:
            codes.append(code)
        if code != exit_codes.EXIT_COMPLETE and not shutdown.requested:
            failed = True
            shutdown.request(f"a rank ended with {code}")
    return exit_codes.combine_exit_codes(codes, noticed=shutdown.requested and not failed)
