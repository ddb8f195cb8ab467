"""Planned ends: nodes of limited duration (flex-start, max-run) announce theirs, and the run stops
before it.

The time comes from HOLDFAST_DEADLINE, or from the annotation that GKE writes on the node, where the
pod may read its node. At the deadline less `lead_s` the process asks itself for the ordinary stop,
with `lead_s` as its window: a save that no Spot notice has room for fits here.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from holdfast.runtime import api_server, logs
from holdfast.runtime.shutdown import Shutdown
from holdfast.support.errors import InputError
from holdfast.support.values import moment
from holdfast.vocabulary.environment import ENV_DEADLINE, ENV_NODE
from holdfast.vocabulary.lifecycle import ANNOTATION_TERMINATION

DEFAULT_LEAD_S = 120.0
_TIMEOUT_S = 5.0

Annotations = Callable[[str], Mapping[str, str]]
"""Node name -> its annotations."""


def planned_end(env: Mapping[str, str], *, annotations: Annotations, now: float) -> float | None:
    """Unix time at which this machine is known to end; None when nothing is known."""
    text = env.get(ENV_DEADLINE, "")
    if not text and (node := env.get(ENV_NODE)):
        text = annotations(node).get(ANNOTATION_TERMINATION, "")
    if not text:
        return None
    at = moment(text)
    # Not a stop at once: the job would start, stop and be started again for ever.
    if at is None or at.timestamp() <= now:
        raise InputError(
            "the deadline is not a time in the future",
            got=text,
            allowed=(
                "RFC 3339, such as 2027-01-31T12:00:00Z, after"
                f" {datetime.fromtimestamp(now, UTC):%FT%TZ}"
            ),
            fix=f"submit the job again, or correct {ENV_DEADLINE}",
        )
    return at.timestamp()


def stop_before(shutdown: Shutdown, end: float, *, lead_s: float) -> threading.Thread:
    """Ask for the stop `lead_s` before `end`; a run that begins later than that stops after its
    first step.
    """

    def watch() -> None:
        # wall clock: it may be set while the run lasts
        while (left := end - lead_s - time.time()) > 0:
            if shutdown.wait(min(left, 30.0)):
                return
        shutdown.request("planned end of the node", window_s=max(0.0, end - time.time()))

    thread = threading.Thread(target=watch, name="deadline", daemon=True)
    thread.start()
    return thread


def node_annotations(node: str) -> Mapping[str, str]:
    """Ask the API server, with the pod's own service account; needs `get` on nodes.

    Without an answer the run goes on: what a surprising end costs is one checkpoint interval.
    """
    try:
        with api_server.opened(f"/api/v1/nodes/{node}", timeout_s=_TIMEOUT_S) as answer:
            return json.load(answer)["metadata"].get("annotations", {})
    except (OSError, KeyError) as error:  # refused, unreachable, no token, not in a cluster
        logs.warning("deadline", f"the planned end of node {node} is unknown: {error}", node=node)
        return {}
