"""Exceptions of batch and online inference, and which part of their text may be shown."""

import math
import os
import re

from holdfast.support.errors import HoldfastError


class BatchError(HoldfastError):
    """Base of the tree; never raised itself."""


class MalformedMessage(BatchError, ValueError):
    """A message is no item. The text never repeats the message's content."""


class QueueUnavailable(BatchError, RuntimeError):
    """The queue does not answer now; the same call may work later."""


class PredictorError(BatchError, RuntimeError):
    """Of the predicting side; never raised itself."""


class PredictorBroken(PredictorError):
    """The device or the model is at fault, not an item: exit, and let another node try."""


class ProcessDied(PredictorError):
    """The predicting process ended: an item's fault, or the device's; triage decides which."""


class TimedOut(ProcessDied):
    """It did not answer in time, and was ended."""


class LoaderFailed(PredictorError):
    """load() has a bug, which every node would meet."""


class ItemFault(PredictorError):
    """An exception of predict(), with the class that it had in the predicting process."""

    def __init__(self, error_class: str, message: str) -> None:
        self.error_class = error_class
        super().__init__(message)


class Refused(HoldfastError):
    """A request gets no prediction: 400 malformed, 404 no such model, 408 too slow, 413 too large,
    422 the model refuses it, 429 load, 500 it ends the predictor, 503 this server not now (another
    may), 504 too late.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        retry_after_s: float | None = None,
        reason: str = "",
    ) -> None:
        self.status = status
        self.message = message
        self.reason = reason or str(status)
        if retry_after_s is None:
            self.retry_after_s = None
        else:
            self.retry_after_s = max(1, math.ceil(min(retry_after_s, 3_600.0)))
        super().__init__(message)


MAX_CHARS = 300
_MIN_WORD = 5
# key=value pairs of usual secrets, bearer tokens, passwords in URIs.
_SECRET = re.compile(
    r"(?i)(\bauthorization\b\s*[=:]\s*)[^\r\n]+"
    r"|(\b(?:password|passwd|secret|token|api[_-]?key)\b\s*[=:]\s*)\S+"
    r"|(\bbearer\s+)\S+|(://[^/\s:@]+:)[^@\s]+(?=@)"
)
_SECRET_NAME = re.compile(r"(?i)passw|secret|token|api_?key|credential|database_url")


def redacted(text: str, *, content: bytes = b"") -> str:
    """At most MAX_CHARS; words that occur in `content` and values of secret variables are left out."""
    for name, value in os.environ.items():
        if len(value) >= _MIN_WORD and _SECRET_NAME.search(name):
            text = text.replace(value, "***")
    text = _SECRET.sub(lambda m: f"{next(filter(None, m.groups()))}***", text)
    known = content.decode("utf-8", "replace")
    words = (
        ("***" if len(word) >= _MIN_WORD and word in known else word)
        for word in re.split(r"(\W+)", text)
    )
    return "".join(c if c.isprintable() else " " for c in "".join(words))[:MAX_CHARS]
