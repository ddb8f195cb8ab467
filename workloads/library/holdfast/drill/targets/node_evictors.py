"""How a node is evicted, as far as the Kubernetes API reaches."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from holdfast.clients.api import Api, ApiError, Object

NODES = "/api/v1/nodes"
TAINT = "holdfast.dev/drill"
CONFLICT = 409
_TRIES = 10


class NodeEvictor(Protocol):
    def check(self, node: Object) -> str:
        """Why this node must not be taken; empty if it may."""
        ...

    def evict(self, nodes: Sequence[str]) -> str:
        """What was done, in a few words. Returns when the nodes have heard, not when they are gone."""
        ...

    def rollback(self) -> Iterable[tuple[str, Callable[[], object]]]: ...


class TaintEvictor:
    """NoExecute: the taint manager ends the pods with a DisruptionTarget, and nothing new lands there."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._taken: list[str] = []

    def check(self, node: Object) -> str:
        return "it is closed already" if node["spec"].get("unschedulable") else ""

    def evict(self, nodes: Sequence[str]) -> str:
        for name in nodes:
            self._taken.append(name)
            self._set(name, [{"key": TAINT, "effect": "NoExecute"}])
        return f"{TAINT}:NoExecute on {', '.join(nodes)}"

    def rollback(self) -> Iterable[tuple[str, Callable[[], object]]]:
        for name in self._taken:
            yield f"open {name} again", lambda name=name: self._set(name, [])

    def _set(self, name: str, ours: list[Object]) -> None:
        """Everybody else's taints stay: with the version, a write that came between is refused and read again."""
        for left in reversed(range(_TRIES)):
            node = self._api.find(f"{NODES}/{name}")
            if node is None:
                return
            taints = [taint for taint in node["spec"].get("taints", ()) if taint["key"] != TAINT]
            version = {"resourceVersion": node["metadata"]["resourceVersion"]}
            try:
                self._api.merge(f"{NODES}/{name}", {"metadata": version, "spec": {"taints": taints + ours}})
                return
            except ApiError as error:
                if error.status != CONFLICT or not left:
                    raise
