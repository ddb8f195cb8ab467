"""Exceptions of batch inference, beside InputError (bad input) and Unjudged (no verdict) of the contract.

BatchError
├── MalformedMessage       a message is no item
├── QueueUnavailable       the queue does not answer now
└── PredictorError
    ├── PredictorBroken    the device or the model is at fault
    ├── ProcessDied        the predicting process ended or did not answer in time
    ├── LoaderFailed       load() has a bug
    └── ItemFault          predict() raised
"""

from holdfast.contract.errors import HoldfastError


class BatchError(HoldfastError):
    """Base of the tree; never raised itself."""


class MalformedMessage(BatchError, ValueError):
    """The text never repeats the message's content."""


class QueueUnavailable(BatchError, RuntimeError):
    """The same call may work later."""


class PredictorError(BatchError, RuntimeError):
    """Of the predicting side; never raised itself."""


class PredictorBroken(PredictorError):
    """Not an item's fault: exit, and let another node try."""


class ProcessDied(PredictorError):
    """An item's fault, or the device's; triage decides which."""


class LoaderFailed(PredictorError):
    """Another node would meet the same bug."""


class ItemFault(PredictorError):
    """An exception of predict(), with the class that it had in the predicting process."""

    def __init__(self, error_class: str, message: str) -> None:
        self.error_class = error_class
        super().__init__(message)
