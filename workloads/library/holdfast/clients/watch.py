"""One kind of a cluster, as a copy that is kept equal to what the API server knows, through its
restarts.

List, then watch from there; on any break, and when a watch ends, list again: what vanished
meanwhile is forgotten, so a missed DELETED does no harm. Standard library only: the proxy's image
has no client for Kubernetes.
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
"""ADDED, MODIFIED or DELETED, and of what."""
WATCH_S = 300
_PAGE = 1_000
_LIST_S = 30.0
# The API server sends bookmarks about every minute.
_SILENT_S = 60.0
_LOOK_AGAIN_S = 300.0
_FIRST_PAUSE_S = 0.5


class NotThere(HoldfastError):
    """A kind that this cluster does not know, or does not show, and that nothing waits for."""


class Answer(Protocol):
    """Lines, when it is iterated; http.client's and urllib3's responses are such."""

    def read(self) -> bytes: ...

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None: ...


class ListAndWatch(threading.Thread):
    """Runs until `stop`. `ready` is set after the first list."""

    breaks: ClassVar[tuple[type[Exception], ...]] = (OSError, HTTPException, ValueError, KeyError)
    """What ends a watch, to be begun again. ValueError: a line cut by the server's end."""
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
        """The answer that is being read."""

    def get(self, query: Mapping[str, str], timeout_s: float) -> Answer:
        """`timeout_s` bounds each wait for bytes. NotThere, or one of `breaks`."""
        raise NotImplementedError

    def take(self, changes: Sequence[Change]) -> None:
        """A page of the list, or one change of the watch."""
        raise NotImplementedError

    def keep_only(self, listed: set[Any]) -> None:
        """The list is complete: what has none of these keys is gone."""
        raise NotImplementedError

    def run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self.stop.is_set():
            try:
                version = self._list()
                self.ready.set()
                pause_s = _FIRST_PAUSE_S
                self._watch(version)
            except NotThere as error:
                self._warn(f"{error}; looking again in {_LOOK_AGAIN_S:.0f} s")
                self.ready.set()
                self.stop.wait(_LOOK_AGAIN_S)
            except self.breaks as error:
                self._warn(f"{_short(error)}; listing again in {pause_s:.1f} s")
                self.stop.wait(pause_s)
                pause_s = min(pause_s * 2, self.longest_pause_s)

    def _list(self) -> str:
        """Page by page: the objects of a large cluster are never in memory together."""
        keys: set[Any] = set()
        query = {"limit": str(_PAGE)}
        while True:
            with closing(self.get(query, _LIST_S)) as answer:
                page = json.loads(answer.read())
            self.take([("ADDED", found) for found in page["items"]])
            keys |= {self._key(found) for found in page["items"]}
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
        with closing(self.get(query, WATCH_S + _SILENT_S)) as answer:
            self.open = answer
            try:
                for line in answer:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        # too old
                        raise ValueError(event["object"].get("message", "the watch cannot go on"))
                    if event["type"] != "BOOKMARK":
                        self.take([(event["type"], event["object"])])
                    if self.stop.is_set():
                        return
            finally:
                self.open = None


def _short(error: Exception) -> str:
    if str(error):
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return type(error).__name__
