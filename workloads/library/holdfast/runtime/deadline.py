"""Planned ends of nodes with a limited duration (flex-start, max-run): the run stops in time.

The end comes from HOLDFAST_DEADLINE, or from the annotation that GKE writes on the node if the pod
may read its node. The process requests the ordinary stop `lead_s` before that end, with `lead_s` as
its window, which has room for saves that do not fit in a Spot notice.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http.client import HTTPException

from holdfast.runtime import api_server, logs
from holdfast.runtime.shutdown import Shutdown
from holdfast.support.errors import InputError
from holdfast.support.values import moment
from holdfast.vocabulary.environment import ENV_DEADLINE, ENV_NODE
from holdfast.vocabulary.lifecycle import ANNOTATION_TERMINATION

DEFAULT_LEAD_S = 120.0
_TIMEOUT_S = 5.0
_POLL_S = 30.0

Annotations = Callable[[str], Mapping[str, str]]
"""A function that returns the annotations of the node with a given name."""


def find_planned_end(
    env: Mapping[str, str],
    *,
    annotations: Annotations,
    now: float,
) -> float | None:
    """Returns the Unix time at which this machine will end; None if it is unknown.

    Raises InputError if the deadline is not a time in the future.
    """
    text = env.get(ENV_DEADLINE, "")
    node = env.get(ENV_NODE)
    if not text and node:
        text = annotations(node).get(ANNOTATION_TERMINATION, "")
    if not text:
        return None
    end = moment(text)
    # An error, not an immediate stop: the job would start, stop and be restarted forever.
    if end is None or end.timestamp() <= now:
        now_text = f"{datetime.fromtimestamp(now, UTC):%FT%TZ}"
        raise InputError(
            "the deadline is not a time in the future",
            got=text,
            allowed=f"RFC 3339, such as 2027-01-31T12:00:00Z, after {now_text}",
            fix=f"submit the job again, or correct {ENV_DEADLINE}",
        )
    return end.timestamp()


def stop_before(shutdown: Shutdown, end: float, *, lead_s: float) -> threading.Thread:
    """Starts a thread that requests the stop `lead_s` before `end`.

    A run that starts later than that stops after its first step.
    """

    def watch() -> None:
        while True:
            # The wall clock may be set during the run, so the rest is computed again and again.
            rest_s = end - lead_s - time.time()
            if rest_s <= 0:
                break
            if shutdown.wait(min(rest_s, _POLL_S)):
                return
        shutdown.request(
            "planned end of the node",
            window_s=max(0.0, end - time.time()),
        )

    thread = threading.Thread(target=watch, name="deadline", daemon=True)
    thread.start()
    return thread


def fetch_node_annotations(node: str) -> Mapping[str, str]:
    """Reads the annotations of a node with the pod's service account, which needs `get` on nodes.

    Returns none if the API server does not answer: an unexpected end costs one checkpoint interval.
    """
    try:
        response = api_server.open_path(f"/api/v1/nodes/{node}", timeout_s=_TIMEOUT_S)
        with response:
            return json.load(response)["metadata"].get("annotations", {})
    # Refused, unreachable, no token, not in a cluster, or cut off.
    except (OSError, KeyError, ValueError, HTTPException) as error:
        logs.warning(
            "deadline",
            f"the planned end of node {node} is unknown: {error}",
            node=node,
        )
        return {}
