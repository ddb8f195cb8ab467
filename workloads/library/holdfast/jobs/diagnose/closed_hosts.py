"""Finds the host that a pod waits for and may not reach, in what the pod printed.

A closed host does not refuse: packets are dropped, and the client waits until its own timeout.
"""

import re
from collections.abc import Iterable, Iterator

from holdfast.clients.api import Api, ApiError, Object
from holdfast.jobs.diagnose.failures import list_messages
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot
from holdfast.jobs.diagnose.reasons import Cause, Reason
from holdfast.platform import Platform
from holdfast.platform.egress import admits
from holdfast.support.errors import Unjudged

MAIN = "main"  # the container of every job's program
TAIL_LINES = 60
MOST_PODS = 3
MAX_BYTES = 65_536
_HOST = r"(?P<host>(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,})"
# What clients say of a host that does not answer: urllib3 and requests, httpx, curl, Go, aiohttp.
_SAID = (
    re.compile(rf"host='{_HOST}', port=\d+"),
    re.compile(rf"Connection to {_HOST} timed out"),
    re.compile(rf"(?:Failed|Could not|Couldn't) (?:to )?connect to (?:server |host )?{_HOST}"),
    re.compile(rf"(?:dial tcp|Get|Post) \"?(?:https?://)?{_HOST}[^\n]*(?:i/o timeout|timed? ?out)"),
    re.compile(rf"https?://{_HOST}[^\n]*(?:ConnectTimeout|timed? ?out)"),
    re.compile(rf"(?:ConnectTimeout|timed? ?out)[^\n]*https?://{_HOST}"),
)
EXPLAINABLE = (Reason.NONE, Reason.STARTING, Reason.CRASH, Reason.INIT, Reason.FAILED)
"""Causes that a closed host may be behind."""


def explain_closed_host(api: Api, job: JobSnapshot, platform: Platform) -> Cause | None:
    """Returns the cause if a pod of the job names a host that its namespace may not reach."""
    for pod, text in _read_texts(api, job):
        host = find_closed_host(text, platform.list_egress(job.namespace))
        if host:
            name = pod["metadata"]["name"]
            return Cause(
                Reason.EGRESS,
                f"{name} waits for {host}, which pods of {job.namespace} may not reach",
                f'the platform team adds "{host}" to egress of the environment or of the team,'
                " and applies it",
                f"kubectl logs -n {job.namespace} {name} -c {MAIN} --tail={TAIL_LINES}",
            )
    return None


def find_closed_host(text: str, targets: Iterable[str]) -> str:
    """Returns the last host in a text that did not answer and is no target; empty: none."""
    opened = tuple(targets)
    positions: list[tuple[int, str]] = []
    for pattern in _SAID:
        for match in pattern.finditer(text):
            if not admits(opened, match["host"]):
                positions.append((match.start(), match["host"]))
    return max(positions, default=(0, ""))[1]


def _read_texts(api: Api, job: JobSnapshot) -> Iterator[tuple[Object, str]]:
    """Yields pods with what they said at their end, or the last lines of their log."""
    pods = [*job.phase("Running"), *reversed(job.phase("Failed"))]
    for pod in pods[:MOST_PODS]:
        yield pod, "\n".join(list_messages(pod))
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/log"
        try:
            yield (
                pod,
                api.text(
                    path,
                    container=MAIN,
                    tailLines=TAIL_LINES,
                    limitBytes=MAX_BYTES,
                ),
            )
        except ApiError:
            continue  # a pod of another program, or a node that is gone
        except Unjudged:
            return  # a node that does not answer takes minutes, and the cause matters more
