"""Exceptions of training, in addition to InputError and the exits of the checkpoint library.

Each CheckpointExit here ends its process with exit code 75.
"""

from holdfast.checkpoint.errors import CheckpointExit
from holdfast.support.errors import HoldfastError


class GroupLost(HoldfastError):
    """A member of this epoch was lost or does not answer."""


class Expelled(HoldfastError):
    """The gang continued without this member. It may rejoin as a newcomer, without its state."""


class GangTooSmall(CheckpointExit):
    """The gang had fewer nodes than its minimum for too long: release them and retry."""


class CutOff(CheckpointExit):
    """The gang continued where this member cannot reach it: restart it as a newcomer."""


class Miscomputed(CheckpointExit):
    """This member's gradients were wrong where the step was done again: its machine is faulty."""


class NodeLost(CheckpointExit):
    """Another rank of this node was lost, and with it a shard of the node's state: restart the
    node.
    """
