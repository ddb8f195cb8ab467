"""The exceptions of this room.

    InputError (of the contract)   bad input, or a checkpoint that does not fit: raised on every rank alike
    Damaged                        bytes are not what was committed: restore falls back to an older checkpoint
    Abandoned                      another rank's upload failed, so this attempt can never be complete
    RankLost (RuntimeError)        a rank did not answer in time
    StorageError                   the store refused
      NotFound AlreadyExists Denied Full
      Transient                    the only one that is worth another try
    Fenced                         a newer trainer of the same run has taken the right to commit
    CheckpointExit (SystemExit)    ends the process with a code that the launcher acts on, on every rank alike
      Preempted                    the ranks agreed to stop; exit code 143, resume me
      NotDurable                   the final state is not stored; exit code 75, start me again
      Superseded                   two trainers under one run name, and this is the older; exit code 2

What fails in the background (an upload, a commit, retention) is reported and never raised in the training loop.
"""

from holdfast.contract.errors import HoldfastError
from holdfast.contract.exit_codes import EXIT_BAD_INPUT, EXIT_PREEMPTED, EXIT_RETRY


class Damaged(HoldfastError):
    """These bytes are not what was committed; the text says what is wrong with them."""


class Abandoned(HoldfastError):
    """Another rank failed, so this attempt can never be complete."""


class RankLost(HoldfastError, RuntimeError):
    """A rank did not answer in time."""


class StorageError(HoldfastError):
    """The store refused; trying again does not help."""


class NotFound(StorageError):
    pass


class AlreadyExists(StorageError):
    """Create-only put on a name that is taken."""


class Denied(StorageError):
    """No permission, no bucket, read-only."""


class Full(StorageError):
    """No space or quota left."""


# Only what may pass by itself belongs here: it is repeated for minutes, while the job's window may be seconds.
class Transient(StorageError):
    """Trying again may help: 429, 5xx, timeout, broken connection."""


class Fenced(HoldfastError):
    """A newer trainer of the same run has taken the right to commit; the text names it."""


# No Exception: a loop that catches Exception for each batch would swallow the stop and train on.
class CheckpointExit(SystemExit):
    """Leaves the process with a code that a launcher acts on."""

    CODE = EXIT_RETRY

    def __init__(self, step: int, reason: str = "") -> None:
        super().__init__(self.CODE)
        self.step, self.reason = step, reason


class Preempted(CheckpointExit):
    """The ranks agreed to stop: resume me."""

    CODE = EXIT_PREEMPTED


class NotDurable(CheckpointExit):
    """Work was done that no checkpoint holds: never `complete`, start me again."""


class Superseded(CheckpointExit):
    """Two trainers write one run, and the other began later. To start again would only take the run from it."""

    CODE = EXIT_BAD_INPUT
