"""Event lines of pods through the API server, for clusters whose logs nobody collects: a file for each pod.

Guarantees: a line is kept once; a look asks for PIECE bytes of a pod, and MOST of it are kept in all. Of a pod that is
gone nothing can be asked any more, so what it wrote after the last look is missing, as is what it wrote in a second
beyond PIECE.
"""

from dataclasses import dataclass, field
from pathlib import Path

from holdfast.clients.api import Api, ApiError, Object
from holdfast.contract.values import rfc3339, unix_s
from holdfast.manifests.pods import MAIN

PIECE, MOST = 1 << 20, 1 << 26
SECOND = len("2026-01-01T00:00:00")


@dataclass(slots=True)
class _Mark:
    """How far a pod was read."""

    second: str = ""
    seen: set[str] = field(default_factory=set[str])
    """Lines of that second: the API takes no finer time."""
    kept: int = 0


@dataclass(slots=True)
class PodLines:
    folder: Path
    _marks: dict[str, _Mark] = field(default_factory=dict[str, _Mark])

    def look(self, api: Api, pod: Object) -> None:
        """All that is new, as far as its node answers."""
        meta = pod["metadata"]
        mark = self._marks.setdefault(meta["uid"], _Mark())
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/log"
        while mark.kept < MOST:
            since = {"sinceTime": f"{mark.second}Z"} if mark.second else {}
            try:
                text = api.text(path, container=MAIN, timestamps="true", limitBytes=PIECE, **since)
            except ApiError:
                return
            more = len(text.encode()) >= PIECE
            if not self._keep(meta["uid"], mark, text[: text.rfind("\n") + 1]) and more:
                mark.second, mark.seen = rfc3339(unix_s(f"{mark.second}Z") + 1)[:SECOND], set()
            if not more:
                break
        if pod["status"].get("phase") in ("Succeeded", "Failed"):
            mark.kept = MOST  # all that it will ever print

    def _keep(self, uid: str, mark: _Mark, text: str) -> bool:
        """Whether anything was new."""
        fresh = [line for line in text.splitlines() if line not in mark.seen and line[:SECOND] >= mark.second]
        if not fresh:
            return False
        newest = fresh[-1][:SECOND]
        if newest != mark.second:
            mark.second, mark.seen = newest, set()
        mark.seen |= {line for line in fresh if line.startswith(newest)}
        events = [event for line in fresh if _is_event(event := line.partition(" ")[2])]
        written = "".join(f"{event}\n" for event in events)
        mark.kept += len(written)
        if written:
            with (self.folder / f"{uid}.jsonl").open("a", encoding="utf-8") as file:
                file.write(written)
        return True


def _is_event(line: str) -> bool:
    return line.startswith("{") and '"event"' in line
