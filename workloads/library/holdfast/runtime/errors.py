"""The exceptions of this room, in addition to InputError (bad input) of the contract."""

from holdfast.support.errors import HoldfastError


# No InputError: its exit code fails the Job for good, and one broken node would do that.
class GpuLost(HoldfastError, RuntimeError):
    """A promised GPU does not answer. This machine's fault and not the job's: exit code 75, another
    node may work.
    """
