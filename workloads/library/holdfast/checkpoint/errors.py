"""The exceptions of the checkpoint library, in addition to InputError of the contract.

What fails in the background (an upload, a commit, retention) is reported and never raised in the
training loop. An InputError, a RankLost and each CheckpointExit are raised on every rank, or a rank
would wait for one that is gone.
"""

from holdfast.support.errors import HoldfastError
from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT, EXIT_PREEMPTED, EXIT_RETRY


class Damaged(HoldfastError):
    """These bytes are not what was committed; the text says why. Restore falls back to an older
    checkpoint.
    """


class Abandoned(HoldfastError):
    """Another rank failed, so this attempt can never be complete."""


class RankLost(HoldfastError, RuntimeError):
    """A rank did not answer in time."""


class StorageError(HoldfastError):
    """The store refused; trying again does not help."""


class NotFound(StorageError):
    """No object of that name."""


class AlreadyExists(StorageError):
    """Create-only put on a name that is taken."""


class Denied(StorageError):
    """No permission, no bucket, read-only."""


class Full(StorageError):
    """No space or quota left."""


# Only what may pass by itself belongs here: it is repeated for minutes, while the job's window may
# be seconds.
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
        self.step = step
        self.reason = reason


class Preempted(CheckpointExit):
    """The ranks agreed to stop: resume me."""

    CODE = EXIT_PREEMPTED


class NotDurable(CheckpointExit):
    """Work was done that no checkpoint holds: never `complete`, start me again."""


class Superseded(CheckpointExit):
    """Two trainers write one run, and the other began later. To start again would only take the run
    from it.
    """

    CODE = EXIT_BAD_INPUT
