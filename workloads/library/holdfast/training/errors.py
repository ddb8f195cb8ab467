"""The exceptions of this room, in addition to InputError (bad input) of the contract and the ends
of a process of checkpoints.

Each CheckpointExit here ends its process with 75.
"""

from holdfast.checkpoint.errors import CheckpointExit
from holdfast.support.errors import HoldfastError


class GroupLost(HoldfastError):
    """A member of this epoch is gone or silent."""


class Expelled(HoldfastError):
    """The gang went on without this member: it may come back as a newcomer, and nothing it holds
    counts.
    """


class GangTooSmall(CheckpointExit):
    """Fewer nodes than the least for too long: give them back, start me again."""


class CutOff(CheckpointExit):
    """The gang went on where this member cannot reach it: start me again, as a newcomer."""


class NodeLost(CheckpointExit):
    """Another rank of this node is gone, and with it a shard of the node's state: start the node
    again.
    """
