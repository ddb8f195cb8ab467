"""One exporter and one mover act at a time: a Lease of the cluster for each decides which.

The API server's resourceVersion decides races, so clocks need to agree only roughly.
"""

# Why it is so: infra/decisions/0107.

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

EXPORTER, MOVER = "holdfast-exporter", "holdfast-mover"
CONFLICT, MISSING = 409, 404


@dataclass(slots=True)
class Lease:
    api: client.CoordinationV1Api
    namespace: str
    name: str = EXPORTER
    me: str = f"{socket.gethostname()}-{os.getpid()}"
    holds_s: int = 30
    clock: Callable[[], float] = time.time
    heard: bool = False
    """At the last look another holder had renewed since the look before."""
    _mine_until_s: float = 0.0
    _renewed: Any = None

    def held(self) -> bool:
        """Take, renew or respect the lease; whether it is mine now."""
        try:
            found: Any = self.api.read_namespaced_lease(self.name, self.namespace)
        except ApiException as error:
            if error.status != MISSING:
                raise
            return self._write(None)
        holder = found.spec.holder_identity
        if holder not in (None, "", self.me) and not self._expired(found.spec):
            self.heard, self._renewed = found.spec.renew_time != self._renewed, found.spec.renew_time
            self._mine_until_s = 0.0
            return False
        return self._write(found)

    @property
    def recently_held(self) -> bool:
        """It was mine, and nobody can have taken it yet."""
        return self.clock() < self._mine_until_s

    def release(self) -> None:
        """So that the next one need not wait for the end of the term."""
        found: Any = self.api.read_namespaced_lease(self.name, self.namespace)
        if found.spec.holder_identity == self.me:
            found.spec.holder_identity = ""
            self.api.replace_namespaced_lease(self.name, self.namespace, found)

    def _expired(self, spec: Any) -> bool:
        if spec.renew_time is None:
            return True
        return self.clock() - spec.renew_time.timestamp() > (spec.lease_duration_seconds or self.holds_s)

    def _write(self, found: Any) -> bool:
        now = datetime.fromtimestamp(self.clock(), UTC)
        spec = client.V1LeaseSpec(holder_identity=self.me, lease_duration_seconds=self.holds_s, renew_time=now)
        try:
            if found is None:
                body = client.V1Lease(metadata=client.V1ObjectMeta(name=self.name), spec=spec)
                self.api.create_namespaced_lease(self.namespace, body)
            else:
                found.spec = spec
                self.api.replace_namespaced_lease(self.name, self.namespace, found)
        except ApiException as error:
            if error.status == CONFLICT:
                return False  # somebody was faster
            raise
        self._mine_until_s = self.clock() + self.holds_s
        return True
