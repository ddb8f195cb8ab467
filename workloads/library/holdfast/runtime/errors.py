"""The exceptions of this room, beside InputError (bad input) of the contract.

GpuLost (RuntimeError)   a promised GPU does not answer: this machine's fault, exit code 75
"""


# No InputError: its exit code fails the Job for good, and one broken node would do that.
class GpuLost(RuntimeError):
    """This machine's fault and not the job's: another start, on another node, may work."""
