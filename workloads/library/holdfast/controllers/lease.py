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

from holdfast.clients.api import Api, ApiError, Object
from holdfast.support.values import unix_s
from holdfast.vocabulary.kubernetes import LEASE_API, api_path

EXPORTER = "holdfast-exporter"
MOVER = "holdfast-mover"
CONFLICT = 409


@dataclass(slots=True)
class Lease:
    api: Api
    namespace: str
    name: str = EXPORTER
    me: str = f"{socket.gethostname()}-{os.getpid()}"
    holds_s: int = 30
    clock: Callable[[], float] = time.time
    heard: bool = False
    """At the last look another holder had renewed since the look before."""
    _mine_until_s: float = 0.0
    _renewed: str = ""

    def held(self) -> bool:
        """Take, renew or respect the lease; whether it is mine now."""
        found = self.api.find(f"{self._leases}/{self.name}")
        spec = (found or {}).get("spec") or {}
        renewed = spec.get("renewTime") or ""
        expired = self.clock() - unix_s(renewed) > (
            spec.get("leaseDurationSeconds") or self.holds_s
        )
        if spec.get("holderIdentity") not in (None, "", self.me) and not expired:
            self.heard = renewed != self._renewed
            self._renewed = renewed
            self._mine_until_s = 0.0
            return False
        return self._written(found)

    @property
    def recently_held(self) -> bool:
        """This process held it, and no other can have taken it yet."""
        return self.clock() < self._mine_until_s

    def release(self) -> None:
        """So that the next one need not wait for the end of the term."""
        path = f"{self._leases}/{self.name}"
        found = self.api.get(path)
        if found["spec"].get("holderIdentity") == self.me:
            self.api.replace(path, found | {"spec": found["spec"] | {"holderIdentity": ""}})

    @property
    def _leases(self) -> str:
        return f"{api_path(LEASE_API)}/namespaces/{self.namespace}/leases"

    def _written(self, found: Object | None) -> bool:
        now = datetime.fromtimestamp(self.clock(), UTC)
        spec = {
            "holderIdentity": self.me,
            "leaseDurationSeconds": self.holds_s,
            "renewTime": f"{now:%Y-%m-%dT%H:%M:%S.%fZ}",
        }
        try:
            if found is None:
                head = {
                    "apiVersion": LEASE_API,
                    "kind": "Lease",
                    "metadata": {"name": self.name},
                }
                self.api.create(self._leases, head | {"spec": spec})
            else:
                self.api.replace(f"{self._leases}/{self.name}", found | {"spec": spec})
        except ApiError as error:
            if error.status == CONFLICT:
                return False  # another exporter was faster
            raise
        self._mine_until_s = self.clock() + self.holds_s
        return True
