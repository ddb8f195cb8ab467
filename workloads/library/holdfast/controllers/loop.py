"""The loop of a process that watches a cluster, exporter or mover: passes under a lease. The first
signal ends it cleanly.
"""

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from typing import Protocol

from holdfast.clients.api import ApiError
from holdfast.controllers.cloud_logs import CloudLogs
from holdfast.controllers.controller_log import logger
from holdfast.controllers.lease import Lease
from holdfast.controllers.watch import Watcher
from holdfast.runtime.shutdown import Shutdown
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.roles import DEFAULT_TEAM, JOB_NAMESPACES

LOG = logger("pass")


class Worker(Protocol):
    """A thread that can be stopped."""

    def start(self) -> None: ...

    def close(self) -> None: ...


@contextmanager
def running(threads: Sequence[Worker | None]) -> Generator[None]:
    """Those that are there, until the end of the block."""
    present = [thread for thread in threads if thread]
    for thread in present:
        thread.start()
    try:
        yield
    finally:
        for thread in present:
            thread.close()


def run(
    one_pass: Callable[[], object],
    watchers: Sequence[Watcher],
    lease: Lease | None,
    stop: Shutdown,
    every_s: float,
) -> None:
    # A pass before the first lists would show that nothing is pending and no node exists.
    while not all(w.ready.is_set() for w in watchers) and not stop.wait(0.1):
        pass
    while not stop.requested:
        guarded(one_pass)
        stop.wait(every_s)
    if lease and leads(lease):
        lease.release()


def guarded(one_pass: Callable[[], object]) -> None:
    """The loop's last resort: a bug must not blind every alert, or stop every move, until a person
    deploys.

    The exporter's heartbeat stops meanwhile, so HoldfastMonitoringSilent pages.
    """
    try:
        one_pass()
    except Exception:
        LOG.exception("a pass failed; the next one begins as usual")


def leads(lease: Lease) -> bool:
    """A process that cannot ask must not act: two writers would be refused each other's points."""
    try:
        return lease.held()
    except (ApiError, Unjudged) as error:
        LOG.warning("lease: %s", error)
        return False


def team_of(given: Sequence[str]) -> dict[str, str]:
    """Namespace of jobs -> team. `given`: TEAM=NAMESPACE of each; none: those of the default team.
    Raises InputError.
    """
    pairs = [each.partition("=") for each in given]
    wrong = [
        each for each, (team, _, space) in zip(given, pairs, strict=True) if not (team and space)
    ]
    if wrong:
        raise InputError(
            "--team",
            got=wrong[0],
            allowed="TEAM=NAMESPACE",
            fix="name the team and one of its namespaces",
        )
    return {space: team for team, _, space in pairs} or dict.fromkeys(JOB_NAMESPACES, DEFAULT_TEAM)


def cloud_logs(project: str, cluster_name: str, namespaces: Collection[str]) -> CloudLogs:
    """Raises Unjudged where there are no credentials."""
    import google.auth
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession

    try:
        credentials, _ = google.auth.default(
            scopes=["https://www.googleapis.com/auth/logging.read"]
        )
    except GoogleAuthError as error:
        raise Unjudged(f"no credentials for Cloud Logging: {error}") from error
    return CloudLogs(AuthorizedSession(credentials), project, cluster_name, namespaces=namespaces)
