"""The exceptions of batch and online inference, and the redaction of their text."""

import math
import os
import re

from holdfast.support.errors import HoldfastError


class BatchError(HoldfastError):
    """The base of batch errors; never raised itself."""


class MalformedMessage(BatchError, ValueError):
    """A message is no item. The text of the error never repeats its content."""


class QueueUnavailable(BatchError, RuntimeError):
    """The queue does not answer now; the same call may work later."""


class PredictorError(BatchError, RuntimeError):
    """The base of errors of the predictor; never raised itself."""


class PredictorBroken(PredictorError):
    """The device or the model is at fault, not an item: another node should try."""


class ProcessDied(PredictorError):
    """The predicting process ended; triage decides if an item or the device is at fault."""


class TimedOut(ProcessDied):
    """The predicting process did not answer in time, and was ended."""


class LoaderFailed(PredictorError):
    """The method load() has a bug, which occurs on every node."""


class ItemFault(PredictorError):
    """An exception of predict(), with its class in the predicting process."""

    def __init__(self, error_class: str, message: str) -> None:
        self.error_class = error_class
        super().__init__(message)


class Refused(HoldfastError):
    """A request gets no prediction.

    400: malformed. 404: unknown model. 408: too slow. 413: too large. 422: rejected by the model.
    429: overload. 500: it ends the predictor. 503: not on this server now. 504: too late.
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
# It matches key=value pairs of usual secrets, bearer tokens and passwords in URIs.
_SECRET = re.compile(
    r"(?i)(\bauthorization\b\s*[=:]\s*)[^\r\n]+"
    r"|(\b(?:password|passwd|secret|token|api[_-]?key)\b\s*[=:]\s*)\S+"
    r"|(\bbearer\s+)\S+|(://[^/\s:@]+:)[^@\s]+(?=@)"
)
_SECRET_NAME = re.compile(r"(?i)passw|secret|token|api_?key|credential|database_url")


def redact(text: str, *, content: bytes = b"") -> str:
    """Removes words of `content` and values of secrets; returns at most MAX_CHARS characters."""
    for name, value in os.environ.items():
        if len(value) >= _MIN_WORD and _SECRET_NAME.search(name):
            text = text.replace(value, "***")
    text = _SECRET.sub(_keep_key, text)
    content_text = content.decode("utf-8", "replace")
    words: list[str] = []
    for word in re.split(r"(\W+)", text):
        is_content = len(word) >= _MIN_WORD and word in content_text
        words.append("***" if is_content else word)
    characters = [c if c.isprintable() else " " for c in "".join(words)]
    return "".join(characters)[:MAX_CHARS]


def _keep_key(match: re.Match[str]) -> str:
    """Returns what precedes a secret, such as its key, and asterisks."""
    key = next(filter(None, match.groups()))
    return f"{key}***"
