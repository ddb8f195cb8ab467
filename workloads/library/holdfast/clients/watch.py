"""Mirrors one kind of object of a cluster, through restarts of the API server.

Lists, then watches from there; on any break, and when a watch ends, lists again. Objects missing
from the list are dropped, so a missed DELETED does no harm. Uses the standard library only: the
proxy's image has no client for Kubernetes.

Decision: infra/decisions/0176.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from http.client import HTTPException
from typing import Any, ClassVar, Protocol

from holdfast.support.errors import HoldfastError

Object = Mapping[str, Any]
Change = tuple[str, Object]
"""ADDED, MODIFIED or DELETED, and the object."""
WATCH_S = 300
_PAGE = 1_000
_LIST_S = 30.0
# The API server sends bookmarks about every minute.
_SILENT_S = 60.0
_LOOK_AGAIN_S = 300.0
_FIRST_PAUSE_S = 0.5


class UnknownKind(HoldfastError):
    """Reports an optional kind that this cluster does not know, or hides from this account."""


class Answer(Protocol):
    """A response that yields lines, as those of http.client and urllib3 do."""

    def read(self) -> bytes: ...

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None: ...


class ListAndWatch(threading.Thread):
    """Runs until `stop` is set. `ready` is set after the first list."""

    breaks: ClassVar[tuple[type[Exception], ...]] = (OSError, HTTPException, ValueError, KeyError)
    """Errors after which the list is repeated. ValueError: a line was cut off."""
    longest_pause_s: ClassVar[float] = 15.0

    def __init__(
        self, name: str, *, key: Callable[[Object], Any], warn: Callable[[str], None]
    ) -> None:
        super().__init__(name=f"watch-{name}", daemon=True)
        self._key = key
        self._warn = warn
        self.ready = threading.Event()
        self.stop = threading.Event()
        self.open: Any = None
        """The response that is being read."""
        self._pause_s = _FIRST_PAUSE_S

    def get(self, query: Mapping[str, str], timeout_s: float) -> Answer:
        """Sends a request. `timeout_s` bounds each wait for bytes.

        Raises UnknownKind, or one of `breaks`.
        """
        raise NotImplementedError

    def take(self, changes: Sequence[Change]) -> None:
        """Applies a page of the list, or one change of the watch."""
        raise NotImplementedError

    def keep_only(self, listed: set[Any]) -> None:
        """Drops the objects that are missing from a complete list of keys."""
        raise NotImplementedError

    def run(self) -> None:
        self._pause_s = _FIRST_PAUSE_S
        while not self.stop.is_set():
            try:
                version = self._list()
                self.ready.set()
                self._watch(version)
            except UnknownKind as error:
                self._warn(f"{error}; looking again in {_LOOK_AGAIN_S:.0f} s")
                self.ready.set()
                self.stop.wait(_LOOK_AGAIN_S)
            except self.breaks as error:
                self._warn(f"{_shorten(error)}; listing again in {self._pause_s:.1f} s")
                self.stop.wait(self._pause_s)
                self._pause_s = min(self._pause_s * 2, self.longest_pause_s)

    def _list(self) -> str:
        """Lists page by page, so that a large cluster is never in memory at once."""
        keys: set[Any] = set()
        query = {"limit": str(_PAGE)}
        while True:
            with closing(self.get(query, _LIST_S)) as response:
                page = json.loads(response.read())
            items = page["items"]
            self.take([("ADDED", item) for item in items])
            keys.update(self._key(item) for item in items)
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                self.keep_only(keys)
                return page["metadata"]["resourceVersion"]

    def _watch(self, version: str) -> None:
        query = {
            "watch": "1",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_S),
            "allowWatchBookmarks": "1",
        }
        with closing(self.get(query, WATCH_S + _SILENT_S)) as response:
            self.open = response
            shows_something = False
            try:
                for line in response:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        # The version to watch from is too old.
                        raise ValueError(event["object"].get("message", "the watch cannot go on"))
                    # Not after the list: it succeeds even if each watch is refused.
                    shows_something = True
                    self._pause_s = _FIRST_PAUSE_S
                    if event["type"] != "BOOKMARK":
                        self.take([(event["type"], event["object"])])
                    if self.stop.is_set():
                        return
            finally:
                self.open = None
        if not shows_something:
            raise ValueError("the watch ended and showed nothing")


def _shorten(error: Exception) -> str:
    name = type(error).__name__
    if not str(error):
        return name
    first_line = str(error).splitlines()[0]
    return f"{name}: {first_line[:200]}"
