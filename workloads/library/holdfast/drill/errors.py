"""The exceptions of this room, in addition to InputError, Stopped and Unjudged of the contract.

DrillError (HoldfastError, RuntimeError)   the work under test did something that no eviction
explains
"""

from holdfast.support.errors import HoldfastError

MAX_LOG_CHARACTERS = 400  # in a line of output; the journal has all


class DrillError(HoldfastError, RuntimeError):
    """The work under test did something that no eviction explains."""


def in_one_line(why: str) -> str:
    """The text of an error that ends with the last lines of a log, without their beginning if they
    are long.
    """
    first, *rest = [line.strip() for line in why.splitlines() if line.strip()] or ["no reason"]
    return f"{first} {' | '.join(rest)[-MAX_LOG_CHARACTERS:]}".rstrip()
