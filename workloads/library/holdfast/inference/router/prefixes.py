"""The beginnings of prompts by which requests find a server that has them in its prefix cache.

Requests with a common beginning should share a server, but not all of them: most services put one
system prompt before everything. So the key of a request is its shortest beginning that few other
requests have. Routers see the same traffic and find the same keys, without talking to each other.
"""

# Decision: infra/decisions/0187.

import hashlib
import json
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, cast

_BLOCK_CHARS = 512
_MOST_BLOCKS = 64
_MOST_CHARS = _BLOCK_CHARS * _MOST_BLOCKS
_LEAST_CHARS_OF_ID = 2
_WINDOW = 1024
"""The latest requests, whose beginnings are counted."""
_SHARE = 0.5
"""The share of one server's requests above which a beginning is too common to be a key."""
_LEAST_COMMON = 16
"""The number of requests up to which no beginning is too common: one conversation has as many."""
_LEAST_REPEATS = 0.1
"""The share of requests whose key came before, below which caches are not worth uneven loads."""


def digest_beginnings(prompt: object) -> tuple[bytes, ...]:
    """Returns a digest of each beginning of a prompt: of one block, of two, and so on."""
    if isinstance(prompt, list):
        prompt = cast("list[Any]", prompt)[: _MOST_CHARS // _LEAST_CHARS_OF_ID]
    text = prompt if isinstance(prompt, str) else json.dumps(prompt)
    digests: list[bytes] = []
    hasher = hashlib.blake2b(digest_size=8)
    for start in range(0, min(len(text), _MOST_CHARS), _BLOCK_CHARS):
        block = text[start : start + _BLOCK_CHARS]
        content = block.encode("utf-8", "replace")
        hasher.update(content)
        digests.append(hasher.digest())
    return tuple(digests)


class PrefixTraffic:
    """Counts the beginnings of the latest prompts."""

    def __init__(self) -> None:
        self._latest = deque[tuple[Sequence[bytes], bool]]()
        """The beginnings of each request, and whether its key came before."""
        self._counts = Counter[bytes]()
        self._repeats = 0

    def find_key(self, beginnings: Sequence[bytes], servers: int) -> bytes:
        """Counts a request and returns the key of its server.

        Empty if hardly any request repeats another one: then the least loaded server is better.
        """
        self._counts.update(beginnings)
        common_count = max(_LEAST_COMMON, _SHARE * len(self._latest) / max(1, servers))
        key = b""
        for key in beginnings:
            if self._counts[key] <= common_count:
                break
        is_repeat = self._counts[key] > 1
        self._latest.append((beginnings, is_repeat))
        self._repeats += is_repeat
        if len(self._latest) > _WINDOW:
            self._forget_oldest()
        judged_requests = len(self._latest) - _LEAST_COMMON  # the first ones say little
        return key if self._repeats >= _LEAST_REPEATS * judged_requests else b""

    def _forget_oldest(self) -> None:
        beginnings, was_repeat = self._latest.popleft()
        self._repeats -= was_repeat
        self._counts.subtract(beginnings)
        for beginning in beginnings:
            if not self._counts[beginning]:
                del self._counts[beginning]
