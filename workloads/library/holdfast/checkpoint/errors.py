"""The exceptions of this room.

    InputError (of the contract)   bad input, or a checkpoint that does not fit: raised on every rank alike
    Damaged                        bytes are not what was committed: restore falls back to an older checkpoint
    Abandoned                      another rank's upload failed, so this attempt can never be complete
    RankLost (RuntimeError)        a rank did not answer in time
    StorageError                   the store refused
      NotFound AlreadyExists Denied Full
      Transient                    the only one that is worth another try
    Preempted (SystemExit)         the ranks agreed to stop; exit code 143, resume me

What fails in the background (an upload, a commit, retention) is reported and never raised in the training loop.
"""

from holdfast.contract.exit_codes import EXIT_PREEMPTED


class Damaged(Exception):
    """These bytes are not what was committed; the text says what is wrong with them."""


class Abandoned(Exception):
    """Another rank failed, so this attempt can never be complete."""


class RankLost(RuntimeError):
    """A rank did not answer in time."""


class StorageError(Exception):
    """The store refused; trying again does not help."""


class NotFound(StorageError):
    pass


class AlreadyExists(StorageError):
    """Create-only put on a name that is taken."""


class Denied(StorageError):
    """No permission, no bucket, read-only."""


class Full(StorageError):
    """No space or quota left."""


class Transient(StorageError):
    """Trying again may help: 429, 5xx, timeout, broken connection."""


class Preempted(SystemExit):
    """The ranks agreed to stop; leaves the process with the code that says `resume me`."""

    def __init__(self, step: int) -> None:
        super().__init__(EXIT_PREEMPTED)
        self.step = step
