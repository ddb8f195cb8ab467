"""Runs the passes of a process that watches a cluster, exporter or mover, under a lease.

The first signal ends the loop cleanly.
"""

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from typing import Protocol

from holdfast.clients.api import ApiError
from holdfast.controllers.cloud_logs import CloudLogs
from holdfast.controllers.controller_log import get_logger
from holdfast.controllers.lease import Lease
from holdfast.controllers.watch import Watcher
from holdfast.runtime.shutdown import Shutdown
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.roles import DEFAULT_TEAM, JOB_NAMESPACES

LOG = get_logger("pass")


class Worker(Protocol):
    """A thread that can be stopped."""

    def start(self) -> None: ...

    def close(self) -> None: ...


@contextmanager
def running(threads: Sequence[Worker | None]) -> Generator[None]:
    """Runs the threads that are not None until the end of the block."""
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
    """Repeats `one_pass` until a signal, then releases the lease."""
    # A pass before the first lists would show that nothing is pending and no node exists.
    while not _are_ready(watchers) and not stop.wait(0.1):
        pass
    while not stop.requested:
        run_pass(one_pass)
        stop.wait(every_s)
    if lease and leads(lease):
        lease.release()


def _are_ready(watchers: Sequence[Watcher]) -> bool:
    return all(watcher.ready.is_set() for watcher in watchers)


def run_pass(one_pass: Callable[[], object]) -> None:
    """Runs one pass and logs any exception, as the loop's last resort.

    A bug must not silence every alert, or stop every move, until a person deploys. The exporter's
    heartbeat stops meanwhile, so HoldfastMonitoringSilent pages.
    """
    try:
        one_pass()
    except Exception:
        LOG.exception("a pass failed; the next one begins as usual")


def leads(lease: Lease) -> bool:
    """Returns whether this process may act.

    A process that cannot ask must not act: of two writers, each would get the other's points
    refused.
    """
    try:
        return lease.acquire()
    except (ApiError, Unjudged) as error:
        LOG.warning("lease: %s", error)
        return False


def read_teams(options: Sequence[str]) -> dict[str, str]:
    """Returns namespace -> team from the options, each TEAM=NAMESPACE.

    Without options, the default team has the namespaces of the platform. Raises InputError.
    """
    teams: dict[str, str] = {}
    for option in options:
        team, _, namespace = option.partition("=")
        if not (team and namespace):
            raise InputError(
                "--team",
                got=option,
                allowed="TEAM=NAMESPACE",
                fix="name the team and one of its namespaces",
            )
        teams[namespace] = team
    return teams or dict.fromkeys(JOB_NAMESPACES, DEFAULT_TEAM)


def connect_cloud_logs(project: str, cluster_name: str, namespaces: Collection[str]) -> CloudLogs:
    """Raises Unjudged if there are no credentials."""
    import google.auth
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession

    scopes = ["https://www.googleapis.com/auth/logging.read"]
    try:
        credentials, _ = google.auth.default(scopes=scopes)
    except GoogleAuthError as error:
        raise Unjudged(f"no credentials for Cloud Logging: {error}") from error
    session = AuthorizedSession(credentials)
    return CloudLogs(session, project, cluster_name, namespaces=namespaces)
