"""The exceptions of this room, in addition to InputError (bad input) of the contract.

GpuLost (HoldfastError, RuntimeError)   a promised GPU does not answer: this machine's fault, exit code 75
"""

from holdfast.contract.errors import HoldfastError


# No InputError: its exit code fails the Job for good, and one broken node would do that.
class GpuLost(HoldfastError, RuntimeError):
    """This machine's fault and not the job's: another start, on another node, may work."""
