"""Elects one exporter and one mover by a Lease of the cluster each.

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
    """Another holder renewed the lease between the last two calls of `acquire`."""
    _held_until_s: float = 0.0
    _renewed: str = ""

    def acquire(self) -> bool:
        """Takes or renews the lease unless another process holds it.

        Returns whether this process holds it now. Raises ApiError or Unjudged if the API server
        cannot say.
        """
        lease = self.api.find(self._path)
        spec = (lease or {}).get("spec") or {}
        holder = spec.get("holderIdentity")
        renewed = spec.get("renewTime") or ""
        if holder not in (None, "", self.me) and not self._is_expired(spec):
            self.heard = renewed != self._renewed
            self._renewed = renewed
            self._held_until_s = 0.0
            return False
        return self._write(lease)

    @property
    def recently_held(self) -> bool:
        """This process held the lease, and no other can have taken it yet."""
        return self.clock() < self._held_until_s

    def release(self) -> None:
        """Gives up the lease, so that the next process need not wait for the end of the term."""
        lease = self.api.get(self._path)
        spec = lease["spec"]
        if spec.get("holderIdentity") == self.me:
            released = spec | {"holderIdentity": ""}
            self.api.replace(self._path, lease | {"spec": released})

    @property
    def _leases(self) -> str:
        return f"{api_path(LEASE_API)}/namespaces/{self.namespace}/leases"

    @property
    def _path(self) -> str:
        return f"{self._leases}/{self.name}"

    def _is_expired(self, spec: Object) -> bool:
        age_s = self.clock() - unix_s(spec.get("renewTime") or "")
        return age_s > (spec.get("leaseDurationSeconds") or self.holds_s)

    def _write(self, lease: Object | None) -> bool:
        now = datetime.fromtimestamp(self.clock(), UTC)
        spec = {
            "holderIdentity": self.me,
            "leaseDurationSeconds": self.holds_s,
            "renewTime": f"{now:%Y-%m-%dT%H:%M:%S.%fZ}",
        }
        try:
            if lease is None:
                head: dict[str, Any] = {
                    "apiVersion": LEASE_API,
                    "kind": "Lease",
                    "metadata": {"name": self.name},
                }
                self.api.create(self._leases, head | {"spec": spec})
            else:
                self.api.replace(self._path, lease | {"spec": spec})
        except ApiError as error:
            if error.status == CONFLICT:
                return False  # another process was faster
            raise
        self._held_until_s = self.clock() + self.holds_s
        return True
