"""Hours in seconds: what a real cluster does in moments, shown to the exporter with the hours
between left out.

Names, labels, conditions and their order are the cluster's; only its clock is stretched, in jumps
between acts.
"""

import math
import re
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kubernetes import client

from holdfast.clients.api import Api, Object
from holdfast.controllers.watch import KINDS, QUEUED, Kind, Watcher
from holdfast.mover.cluster_view import View, list_job_kinds
from holdfast.support.values import rfc3339, unix_s
from tests.cluster.sim.waiting import until

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


class StoryClock:
    """Real time plus what has been skipped so far."""

    def __init__(self) -> None:
        self.began_s = time.time()
        self._jumps: list[tuple[float, float]] = []
        self._held: float | None = None

    def __call__(self) -> float:
        return self._held if self._held is not None else self.of(time.time())

    def of(self, real_s: float) -> float:
        """Returns the time in the story of an event at this real time."""
        jumps = [skipped for jump_s, skipped in self._jumps if jump_s <= real_s]
        return real_s + sum(jumps)

    def skip(self, minutes: int, each_minute: Callable[[], None]) -> None:
        """Skips minutes of the story, and calls `each_minute` in each of them.

        Nothing happens in the cluster meanwhile. Its timestamps are whole seconds, so the clock
        jumps on a whole second.
        """
        first = self()
        for minute in range(1, minutes + 1):
            self._held = first + 60 * minute
            each_minute()
        jump_s = math.ceil(time.time()) + 1.0
        until("the next second", lambda: time.time() >= jump_s)
        self._jumps.append(
            (jump_s, self._held - self.of(jump_s) if self._held is not None else 0.0)
        )
        self._held = None

    def translate(self, value: Any) -> Any:
        """Converts every time in an object, except in annotations, to the time of the story."""
        if isinstance(value, dict):
            return {
                key: item if key == "annotations" else self.translate(item)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self.translate(item) for item in value]
        if isinstance(value, str) and _TIME.fullmatch(value):
            return rfc3339(self.of(unix_s(value)))
        return value


class StoryApi(Api):
    """The API with all times translated to those of the story, for `list` and `explain`."""

    def __init__(self, api: Api, clock: StoryClock) -> None:
        self._api = api
        self._clock = clock

    def call(
        self,
        method: str,
        path: str,
        query: Object,
        body: object = None,
        content_type: str = "application/json",
    ) -> Object:
        assert method == "GET"
        return self._clock.translate(self._api.call(method, path, query, body, content_type))


class Watched:
    """What exporter and mover see, each by its own watchers and rights."""

    def __init__(
        self, exporter: client.ApiClient, mover: client.ApiClient, clock: StoryClock
    ) -> None:
        self.cluster = View(clock=clock)
        self.lock = threading.Lock()
        self._clock = clock
        self._seen = dict[str, dict[str, str]]()
        kinds = [(exporter, kind) for kind in (*KINDS, *QUEUED)] + [
            (mover, kind) for kind in list_job_kinds()
        ]
        self.watchers = []
        for watcher, kind in kinds:
            story_kind = self._in_story(kind)
            self.watchers.append(Watcher(story_kind, watcher, self.cluster, self.lock))

    def _in_story(self, kind: Kind) -> Kind:
        versions = self._seen.setdefault(kind.path, {})

        def apply(cluster: View) -> Callable[[str, Mapping[str, Any]], None]:
            take = kind.apply(cluster)

            def change(how: str, found: Mapping[str, Any]) -> None:
                take(how, self._clock.translate(found))
                if how == "DELETED":
                    versions[found["metadata"]["uid"]] = ""
                else:
                    versions[found["metadata"]["uid"]] = found["metadata"]["resourceVersion"]

            return change

        return replace(kind, apply=apply)

    def catch_up(self, api: Api) -> None:
        """Waits until exporter and mover have seen every object as it is now."""

        def same() -> bool:
            for watcher in self.watchers:
                versions = self._seen[watcher.kind.path]
                now = {}
                for o in api.items(watcher.kind.path):
                    now[o["metadata"]["uid"]] = o["metadata"]["resourceVersion"]
                if {uid: version for uid, version in versions.items() if version} != now:
                    return False
            return True

        until("the exporter has seen everything", same)


@contextmanager
def watching(
    exporter: client.ApiClient, mover: client.ApiClient, clock: StoryClock
) -> Generator[Watched]:
    watched = Watched(exporter, mover, clock)
    for watcher in watched.watchers:
        watcher.start()
    try:
        until("the first lists are read", lambda: all(w.ready.is_set() for w in watched.watchers))
        yield watched
    finally:
        for watcher in watched.watchers:
            watcher.close()
            watcher.join(30)
