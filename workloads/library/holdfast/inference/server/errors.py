"""The exception of a request that gets no prediction: what its client is answered.

Refused (HoldfastError)   a status, one sentence, and for load or a server that leaves: when to come back
"""

import math

from holdfast.contract.errors import HoldfastError


class Refused(HoldfastError):
    """400 malformed, 404 no such model, 408 too slow, 413 too large, 422 the model refuses it, 429 load, 500 it ends
    the predictor, 503 this server not now (another may), 504 too late."""

    def __init__(self, status: int, message: str, *, retry_after_s: float | None = None, reason: str = "") -> None:
        self.status, self.message = status, message
        self.reason = reason or str(status)
        self.retry_after_s = None if retry_after_s is None else max(1, math.ceil(min(retry_after_s, 3_600.0)))
        super().__init__(message)
