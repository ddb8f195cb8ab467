"""A Kubernetes API of the platform `example` that lists what a test gives it, over real HTTP: for
commands that read.
"""

import json
from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl

from holdfast.clients.api import Object
from holdfast.platform import Platform
from holdfast.platform.cluster import PATH
from tests import platforms
from workloads.library.tests.http_server import answering

EXAMPLE = platforms.load("example")


@contextmanager
def serving(
    lists: dict[str, list[Object]],
    folder: Path,
    logs: dict[str, list[tuple[str, str]]] | None = None,
    *,
    platform: Platform | None = EXAMPLE,
    answers: dict[str, Object] | None = None,
    member_of: Collection[str] | None = None,
) -> Generator[Path]:
    """Yields a kubeconfig. `lists`: items by path, such as `/apis/batch/v1/jobs`; `answers`: single
    objects by path.

    `logs`: by pod, what it printed and when. `platform`: whose document the cluster holds.
    `member_of`: the namespaces that the user may list, besides nodes and quotas; None: all.
    """
    objects = ({PATH: platforms.make_config_map(platform)} if platform else {}) | (answers or {})

    def answer(url: str, headers: object, body: bytes) -> tuple[int, object]:
        path, _, query = url.partition("?")
        if path.endswith("/log"):
            printed = (logs or {}).get(path.split("/")[-2])
            if printed is None:
                return 404, {"message": "the pod has no log"}
            return 200, _log(printed, dict(parse_qsl(query)))
        if path in objects:
            return 200, objects[path]
        if member_of is not None and not _is_allowed(path, member_of):
            return 403, {"kind": "Status", "message": f"{path} is forbidden at this scope"}
        items = _items(lists, path)
        if items is None:
            return (404, {"message": "not found"})
        return (200, {"metadata": {}, "items": items})

    with answering(answer) as address:
        yield write_kubeconfig(folder / "kubeconfig", address)


def _is_allowed(path: str, namespaces: Collection[str]) -> bool:
    """Return whether the rights of a team's member allow a list."""
    _, separator, rest = path.partition("/namespaces/")
    if separator:
        return rest.partition("/")[0] in namespaces
    return path.rpartition("/")[2] in ("nodes", "clusterqueues")


def write_kubeconfig(path: Path, address: str) -> Path:
    """Writes the kubeconfig of a server without credentials, and returns its path."""
    parts = {
        "cluster": {"server": address},
        "user": {},
        "context": {"cluster": "c", "user": "c"},
    }
    lists = {}
    for kind, part in parts.items():
        lists[f"{kind}s"] = [{"name": "c", kind: part}]
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
            }
            | lists
        )
    )
    return path


def _log(printed: list[tuple[str, str]], query: dict[str, str]) -> bytes:
    """Returns lines as a kubelet does: by whole seconds, cut off in the middle of a line."""
    since = query.get("sinceTime", "").removesuffix("Z")
    has_times = query.get("timestamps") == "true"
    lines: list[str] = []
    for t, line in printed:
        if t[: len(since)] >= since:
            lines.append(f"{t} {line}\n" if has_times else f"{line}\n")
    return "".join(lines).encode()[: int(query["limitBytes"])]


def _items(lists: dict[str, list[Object]], path: str) -> list[Object] | None:
    """Returns the items of a path, which may name a namespace."""
    group, separator, rest = path.partition("/namespaces/")
    if not separator:
        return lists.get(path)
    namespace, _, plural = rest.partition("/")
    items = lists.get(f"{group}/{plural}")
    if items is None:
        return None
    return [item for item in items if item["metadata"].get("namespace") == namespace]
