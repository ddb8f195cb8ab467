"""Shows kwok the pods that it has overlooked.

It skips the events of pods on a node whose Lease it has made and not seen yet. A kubelet would read
these pods again, and kwok does not.
"""

import time
from contextlib import suppress
from threading import Event

from holdfast.clients.api import Api
from holdfast.support.errors import Unjudged
from tests.cluster.sim import pods

RESYNCED = "sim.holdfast.dev/resynced"
_PERIOD_S = 10.0
_BOUND = "status.phase=Pending,spec.nodeName!="


def resync(api: Api, over: Event) -> None:
    """Changes pods that have a node and no start, until `over`: kwok gets an event of each."""
    while not over.wait(_PERIOD_S):
        with suppress(Unjudged, OSError):
            for pod in api.items("/api/v1/pods", fieldSelector=_BOUND):
                if "startTime" not in pod["status"]:
                    pods.annotate(api, pod, {RESYNCED: str(time.monotonic())})
