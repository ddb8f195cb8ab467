"""The exceptions of the checkpoint library, in addition to InputError of the contract.

A failure in the background (an upload, a commit, retention) is reported and never raised in the
training loop. An InputError, a RankLost and each CheckpointExit are raised on every rank; otherwise
a rank would wait for one that has ended.
"""

from holdfast.support.errors import HoldfastError
from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT, EXIT_PREEMPTED, EXIT_RETRY


class Damaged(HoldfastError):
    """Stored bytes differ from the committed ones; the text says how. Restore falls back to an
    older checkpoint.
    """


class Abandoned(HoldfastError):
    """This attempt can never be complete, since another rank failed."""


class RankLost(HoldfastError, RuntimeError):
    """A rank did not answer in time."""


class StorageError(HoldfastError):
    """The store refused a request; a retry does not help."""


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
    """A retry may help: 429, 5xx, timeout, broken connection."""


class Fenced(HoldfastError):
    """A newer trainer of the same run has taken the right to commit; the text names it."""


# Not an Exception: a loop that catches Exception for each batch would ignore the stop.
class CheckpointExit(SystemExit):
    """Ends the process with a code that a launcher acts on.

    A program that catches it raises it again.

        try:
            train(ckpt)
        except CheckpointExit as ending:
            tracker.finish(f"stopped at step {ending.step}: {ending.reason}")
            raise
    """

    CODE = EXIT_RETRY

    def __init__(self, step: int, reason: str = "") -> None:
        super().__init__(self.CODE)
        self.step = step
        self.reason = reason


class Preempted(CheckpointExit):
    """The ranks agreed to stop; the process is to be resumed.

    A program that catches it raises it again.

        try:
            train(ckpt)
        except Preempted as ending:
            tracker.mark_preempting(ending.step)
            raise
    """

    CODE = EXIT_PREEMPTED


class NotDurable(CheckpointExit):
    """No checkpoint holds the last work; the process is not complete and is to be restarted.

    A program that catches it raises it again.

        try:
            train(ckpt)
        except NotDurable as ending:
            tracker.alert(f"the end of the run is not saved: {ending.reason}")
            raise
    """


class Superseded(CheckpointExit):
    """Another trainer of the run started later. A restart would only take the run from it.

    A program that catches it raises it again.

        try:
            train(ckpt)
        except Superseded as ending:
            tracker.finish(ending.reason)
            raise
    """

    CODE = EXIT_BAD_INPUT
