"""Fakes an API server that records requests, and refuses by verb."""

from dataclasses import dataclass, field
from typing import Any

from holdfast.clients.api import ApiError


@dataclass
class Server:
    pods: list[Any] = field(default_factory=list)
    refuse: dict[str, int] = field(default_factory=dict)
    """Verb -> status of its refusal."""
    merged: dict[str, Any] = field(default_factory=dict)
    """Name -> the last change."""
    requests: list[str] = field(default_factory=list)
    """Verb and path below the namespace, in order."""

    def items(self, path: str, **query: str) -> list[Any]:
        return self.pods

    def patch(self, path: str, operations: list[Any]) -> None:
        self.ask("patch", path)
        assert operations[0] == {
            "op": "test",
            "path": "/metadata/resourceVersion",
            "value": "7",
        }

    def merge(self, path: str, change: Any) -> None:
        self.ask("merge", path)
        self.merged[path.rpartition("/")[2]] = change

    def delete(self, path: str, **query: object) -> None:
        self.ask("kill" if query == {"gracePeriodSeconds": 0} else "delete", path)

    def create(self, path: str, body: Any) -> None:
        """Records an event."""
        assert path.endswith("/events")
        self.ask(body["reason"], body["involvedObject"]["name"])

    def evict(self, namespace: str, pod: str) -> None:
        self.ask("evict", pod)

    def ask(self, verb: str, path: str) -> None:
        """Records a request, or refuses it."""
        self.requests.append(
            f"{verb} {path.rpartition('/namespaces/training/')[2].rpartition('/nodes/')[2]}"
        )
        if verb in self.refuse:
            raise ApiError(self.refuse[verb], "no")
