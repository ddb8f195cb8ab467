"""The commands that list, watch, stop and enter jobs. Imports are in the bodies: --help is
quick.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.jobs.options import (
    Context,
    Events,
    Form,
    JobName,
    Json,
    Kubeconfig,
    Namespace,
    Output,
    PlatformFile,
    Yes,
)
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS

if TYPE_CHECKING:
    from holdfast.clients.api import Api
    from holdfast.jobs.diagnose.job_snapshot import JobSnapshot
    from holdfast.platform import Platform

Index = Annotated[
    int | None, typer.Option(min=0, help="Only the pod with this index; default: all.")
]


def list_(
    namespace: Namespace = "",
    events: Events = None,
    platform: PlatformFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    as_json: Json = False,
    output: Output = Form.TEXT,
) -> None:
    """List all jobs: why each waits, its evictions, crashes, last save, and dollars so far."""
    from holdfast.clients.api import Api
    from holdfast.cost import prices
    from holdfast.jobs import output as tables
    from holdfast.jobs.diagnose import explain
    from holdfast.platform.cluster import choose
    from holdfast.support.progress import working

    with working("ask the cluster"):
        api = Api(kubeconfig, context)
        rows = explain.rows(api, choose(api, platform), prices.load(), events, namespace)
    if as_json or output is Form.JSON:
        tables.print_body(explain.rows_json(rows))
    elif rows:
        tables.print_jobs(rows)
    else:
        tables.note("no jobs")


def logs(
    job: JobName,
    namespace: Namespace = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print lines as they come, until the job ends.")
    ] = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="The attempt before the present one.")
    ] = False,
    index: Index = None,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Newest lines of each pod; default: all.")
    ] = None,
    platform: PlatformFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
) -> None:
    """Print what the pods of a job wrote. With several pods, each line begins with [INDEX]."""
    from holdfast.jobs.control import pod_logs
    from holdfast.support.errors import InputError

    if follow and previous:
        raise InputError(
            "an earlier attempt writes no new lines",
            got="--follow and --previous",
            allowed="one of them",
            fix=f"holdfast logs {job} --previous",
        )
    api, document, snapshot = _find(job, namespace, platform, kubeconfig, context)
    selection = pod_logs.Selection(index=index, previous=previous, tail=tail)
    if not follow:
        pod_logs.show(api, document, snapshot, selection)
        return
    ending = pod_logs.follow(api, document, snapshot, selection)
    raise typer.Exit(EXIT_DONE if ending == "Complete" else EXIT_FINDINGS)


def stop(
    job: JobName,
    namespace: Namespace = "",
    now: Annotated[
        bool, typer.Option("--now", help="Do not wait for a save: kill its pods at once.")
    ] = False,
    yes: Yes = False,
    platform: PlatformFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
) -> None:
    """Let a job save and exit, as on an eviction, and keep it for `holdfast resume`.

    Exit 1: it stopped, and no checkpoint was committed after the call.
    """
    from holdfast.jobs import output
    from holdfast.jobs.control import stopping
    from holdfast.support.progress import working

    api, document, snapshot = _find(job, namespace, platform, kubeconfig, context)
    if snapshot.finished:
        output.note(f"{snapshot.name} has ended: {snapshot.finished}")
        return
    if stopping.is_stopped(snapshot):
        output.note(f"{snapshot.name} is stopped already")
        return
    output.ask(f"Stop {snapshot.name} in {snapshot.namespace}?", yes)
    with working(f"wait for the pods of {snapshot.name}"):
        saves = stopping.stop(api, document, snapshot, output.note, now=now)
    had_pods = bool(snapshot.active)
    for line in stopping.describe(snapshot, saves, had_pods=had_pods):
        output.note(line)
    output.note(f"Next: holdfast resume {snapshot.name}")
    is_lost = had_pods and saves.reported and not saves.committed and not now
    raise typer.Exit(EXIT_FINDINGS if is_lost else EXIT_DONE)


def resume(
    job: JobName,
    namespace: Namespace = "",
    platform: PlatformFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
) -> None:
    """Start a stopped job again: it takes its place in the queue and its newest checkpoint."""
    from holdfast.jobs import output
    from holdfast.jobs.control import stopping

    api, document, snapshot = _find(job, namespace, platform, kubeconfig, context)
    stopping.resume(api, document, snapshot)
    output.note(f"resumed {snapshot.name}")
    output.note(f"Next: holdfast explain {snapshot.name}")


def shell(
    job: JobName,
    command: Annotated[
        list[str] | None, typer.Argument(help="A program and its options, after --.")
    ] = None,
    namespace: Namespace = "",
    index: Index = None,
    platform: PlatformFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
) -> None:
    """Open a shell in a running pod of a job, or run a command there and return its exit code."""
    from holdfast.jobs.control import shell as shells

    api, _, snapshot = _find(job, namespace, platform, kubeconfig, context)
    pod = shells.choose_pod(snapshot, index)
    raise typer.Exit(shells.run(api, pod, command or ()))


def _find(
    job: str,
    namespace: str,
    platform: Path | None,
    kubeconfig: Path | None,
    context: str,
) -> "tuple[Api, Platform, JobSnapshot]":
    """Return the cluster, its platform and the job. Raises InputError if there is no such job."""
    from holdfast.clients.api import Api
    from holdfast.jobs.diagnose import job_snapshot
    from holdfast.platform.cluster import choose
    from holdfast.support.progress import working

    with working("ask the cluster"):
        api = Api(kubeconfig, context)
        document = choose(api, platform)
        namespaces = job_snapshot.find_namespaces(api, document, namespace)
        return api, document, job_snapshot.find(api, job, *namespaces)
