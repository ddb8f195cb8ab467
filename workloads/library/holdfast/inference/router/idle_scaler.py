"""`python -m holdfast.inference.router.idle_scaler`: a service without requests has no servers.

It runs in the pod of each router, ends the servers, and starts one for the next request. An
autoscaler rests while its target has no replicas, and sizes the service as soon as there is one. A
Lease has the time of the last request at any router.
"""

# Why it is so: infra/decisions/0157.

import argparse
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from holdfast.runtime import api_server, logs
from holdfast.runtime.shutdown import of_process
from holdfast.support.values import unix_s
from holdfast.vocabulary import serving
from holdfast.vocabulary.kubernetes import LEASE_API, api_path

_STEP_S = 1.0
_LOOK_S = 15.0
"""The time between two looks at the Lease while this router has no requests."""
_START_S = 5.0
"""The time between two looks at the replicas while a request waits."""
_NOTES = 10
"""The number of times that the Lease is renewed in an idle time while there are requests."""
_TIMEOUT_S = 5.0
_CONFLICT = 409


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """The load of a router."""

    open_requests: int
    """Requests that wait, or whose response is on its way."""
    answered_requests: int
    """Requests since it started, with those that it refused."""
    ready_servers: int


def read_load(text: str) -> Load:
    """Reads the metrics of a router. Raises ValueError for any other text."""
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == serving.ROUTER_SERVERS and sample.labels.get("state") != "ready":
                continue
            values[sample.name] = values.get(sample.name, 0.0) + sample.value
    return Load(
        open_requests=int(values.get(serving.ROUTER_STREAMS, 0)),
        answered_requests=int(values.get(serving.ROUTER_REQUESTS, 0)),
        ready_servers=int(values.get(serving.ROUTER_SERVERS, 0)),
    )


class IdleScaler:
    """Scales Deployments between none and one replica."""

    def __init__(
        self,
        *,
        router_url: str,
        namespace: str,
        lease: str,
        deployments: Sequence[str],
        idle_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._metrics_url = f"{router_url}/metrics"
        self._lease = f"{api_path(LEASE_API)}/namespaces/{namespace}/leases/{lease}"
        self._scales: dict[str, str] = {}
        for name in deployments:
            path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"
            self._scales[name] = path
        self._idle_s = idle_s
        self._clock = clock
        self._answered_requests = 0
        self._used_at = 0.0
        self._noted_at = 0.0
        self._looked_at = 0.0
        self._tried_at = 0.0

    def run(self, wait: Callable[[float], bool]) -> None:
        """Follows the router until `wait` returns True. A failed step is tried again."""
        trouble = ""
        while not wait(_STEP_S):
            try:
                self.step()
            except (OSError, HTTPException, ValueError, LookupError) as error:
                # The router starts or ends, or the API server does not answer.
                if str(error) != trouble:
                    logs.warning("idle", f"tried again: {error}")
                trouble = str(error)
            else:
                trouble = ""

    def step(self) -> None:
        """Looks at the router once. Raises OSError if it or the API server does not answer."""
        with urllib.request.urlopen(self._metrics_url, timeout=_TIMEOUT_S) as response:
            load = read_load(response.read().decode())
        now = self._clock()
        if load.open_requests or load.answered_requests != self._answered_requests:
            self._answered_requests = load.answered_requests
            self._used_at = now
        is_used = self._used_at == now
        # While there are requests now and then, and once more after the last one.
        if not is_used or now - self._noted_at >= self._idle_s / _NOTES:
            self._note_use()
        if load.open_requests and not load.ready_servers:
            self._start()
        elif not is_used:
            self._end_if_idle()

    def _note_use(self) -> None:
        """Writes the time of the last request into the Lease, unless it is there already."""
        if self._used_at <= self._noted_at:
            return
        used_at = datetime.fromtimestamp(self._used_at, UTC)
        spec = {"renewTime": f"{used_at:%Y-%m-%dT%H:%M:%S.%fZ}"}
        api_server.merge(self._lease, {"spec": spec}, timeout_s=_TIMEOUT_S)
        self._noted_at = self._used_at

    def _start(self) -> None:
        now = self._clock()
        if now - self._tried_at < _START_S:
            return
        for name, path in self._scales.items():
            scale = api_server.get(path, timeout_s=_TIMEOUT_S)
            if not _count_replicas(scale):
                logs.info("idle", f"a request waits: {name} starts", deployment=name)
                self._scale(path, scale, 1)
        self._tried_at = now

    def _end_if_idle(self) -> None:
        now = self._clock()
        if now - self._looked_at < _LOOK_S:
            return
        lease = api_server.get(self._lease, timeout_s=_TIMEOUT_S)
        self._looked_at = now
        used_at = (lease.get("spec") or {}).get("renewTime")
        if used_at is None:  # a new service: its idle time begins
            self._used_at = now
            self._note_use()
        elif now - unix_s(used_at) > self._idle_s:
            self._end()

    def _end(self) -> None:
        for name, path in self._scales.items():
            scale = api_server.get(path, timeout_s=_TIMEOUT_S)
            if _count_replicas(scale):
                minutes = self._idle_s / 60
                text = f"no request for {minutes:g} minutes: {name} ends"
                logs.info("idle", text, deployment=name)
                self._scale(path, scale, 0)

    def _scale(self, path: str, scale: Any, replicas: int) -> None:
        """Changes the replicas, unless another router did so in the meantime."""
        metadata = {"resourceVersion": scale["metadata"]["resourceVersion"]}
        patch = {"metadata": metadata, "spec": {"replicas": replicas}}
        try:
            api_server.merge(path, patch, timeout_s=_TIMEOUT_S)
        except OSError as error:
            if getattr(error, "code", None) != _CONFLICT:
                raise


def _count_replicas(scale: Any) -> int:
    """Returns the replicas that are asked for; an API server leaves out a zero."""
    return scale["spec"].get("replicas", 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.inference.router.idle_scaler", description=__doc__
    )
    parser.add_argument("--namespace", required=True, help="namespace of the service")
    parser.add_argument("--lease", required=True, help="Lease with the time of the last request")
    parser.add_argument(
        "--deployment",
        required=True,
        action="append",
        dest="deployments",
        help="Deployment of servers; may be repeated",
    )
    parser.add_argument(
        "--idle-minutes",
        required=True,
        type=float,
        help="time without a request after which the servers end",
    )
    parser.add_argument(
        "--router",
        default=f"http://127.0.0.1:{serving.PORT}",
        help="URL of the router whose requests count",
    )
    arguments = parser.parse_args()
    logs.use_json()
    scaler = IdleScaler(
        router_url=arguments.router,
        namespace=arguments.namespace,
        lease=arguments.lease,
        deployments=arguments.deployments,
        idle_s=60 * arguments.idle_minutes,
    )
    scaler.run(of_process().wait)


if __name__ == "__main__":
    main()
