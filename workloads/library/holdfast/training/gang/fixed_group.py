"""The nodes of a gang of a fixed size, as torchrun's variables name them."""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.runtime.gpu import parse_gpu_count
from holdfast.support.errors import InputError
from holdfast.support.values import between
from holdfast.training.gang.member_addresses import MAX_NODES

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
