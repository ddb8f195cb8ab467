"""Tells each server which requests ended the model of another one.

Runs next to the proxy, which knows all servers and whose pods may reach them. A server reports the
requests that it rejects and those that it examines; the others get the reports of all servers with
the same version of the model.
"""

# Decision: infra/decisions/0156.

import http.client
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from holdfast.inference.proxy.endpoints import Endpoint
from holdfast.vocabulary.serving import PROBE_TIMEOUT_S, REJECTIONS_PATH

_INTERVAL_S = 0.5
_MOST_BYTES = 1024 * 1024
_AT_ONCE = 8

Report = Mapping[str, Any]


class RejectionSharer(threading.Thread):
    """Shares reports twice a second until `stop` is set.

        servers = [Endpoint(address="127.0.0.1", port=8081)]
        sharer = RejectionSharer(lambda: servers)
        sharer.start()

    The function is called again each time, since servers come and go.
    """

    def __init__(self, list_servers: Callable[[], Sequence[Endpoint]]) -> None:
        super().__init__(name="rejections", daemon=True)
        self.stop = threading.Event()
        self._list_servers = list_servers
        self._informed = set[Endpoint]()
        """Servers that know of suspects, and must learn when there are none any more."""

    def run(self) -> None:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="rejections") as pool:
            while not self.stop.wait(_INTERVAL_S):
                self._share(pool)

    def _share(self, pool: ThreadPoolExecutor) -> None:
        servers = self._list_servers()
        self._informed.intersection_update(servers)
        reports: dict[Endpoint, Report] = {}
        for server, report in zip(servers, pool.map(_get_report, servers), strict=True):
            if report is not None:
                reports[server] = report
        groups: dict[str, dict[Endpoint, Report]] = {}
        for server, report in reports.items():
            group = groups.setdefault(report["commit"], {})
            group[server] = report
        for commit, group in groups.items():
            merged = _merge(commit, group.values())
            has_news = bool(merged["rejected"] or merged["suspected"])
            if has_news:
                informed = list(group)
                self._informed.update(group)
            else:
                informed = [server for server in group if server in self._informed]
                self._informed.difference_update(group)
            body = json.dumps(merged).encode()
            send = partial(_request, method="POST", body=body)
            list(pool.map(send, informed))


def _merge(commit: str, reports: Iterable[Report]) -> dict[str, Any]:
    """Merges reports; of two ends of a rejection, the later one counts."""
    rejected: dict[str, int] = {}
    suspected = set[str]()
    for report in reports:
        for digest, seconds in report["rejected"].items():
            latest = rejected.get(digest, 0)
            rejected[digest] = max(seconds, latest)
        suspected.update(report["suspected"])
    return {
        "commit": commit,
        "rejected": rejected,
        "suspected": sorted(suspected),
    }


def _get_report(server: Endpoint) -> Report | None:
    """Returns the report of a server; None if it does not answer or has no model."""
    try:
        report = json.loads(_request(server))
    except (ValueError, RecursionError):
        return None
    if not isinstance(report, dict) or not _is_report(cast("Report", report)):
        return None
    return cast("Report", report)


def _is_report(report: Report) -> bool:
    rejected = report.get("rejected")
    suspected = report.get("suspected")
    return (
        isinstance(report.get("commit"), str)
        and isinstance(rejected, dict)
        and all(isinstance(seconds, int) for seconds in cast("Report", rejected).values())
        and isinstance(suspected, list)
        and all(isinstance(digest, str) for digest in cast("list[object]", suspected))
    )


def _request(server: Endpoint, method: str = "GET", body: bytes | None = None) -> bytes:
    """Returns the body of the response; nothing if there is none."""
    connection = http.client.HTTPConnection(server.address, server.port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request(method, REJECTIONS_PATH, body)
        response = connection.getresponse()
        return response.read(_MOST_BYTES) if response.status == 200 else b""
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        connection.close()
