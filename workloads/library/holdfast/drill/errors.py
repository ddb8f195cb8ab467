"""The exceptions of this room, in addition to InputError, Stopped and Unjudged of the contract.

DrillError (HoldfastError, RuntimeError)   the work under test did something that no eviction
explains
"""

from holdfast.support.errors import HoldfastError


class DrillError(HoldfastError, RuntimeError):
    """The work under test did something that no eviction explains."""
