"""The commands that list, watch, stop and enter jobs. Bodies import, so that --help is quick."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.job_commands.options import (
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
    """List all jobs, with why each waits and what it lost, and all services with their replicas."""
    from holdfast.clients.api import Api
    from holdfast.cost import prices
    from holdfast.jobs import output as tables
    from holdfast.jobs.diagnose import explain
    from holdfast.platform.cluster import choose
    from holdfast.services import control
    from holdfast.support.progress import working

    with working("ask the cluster"):
        api = Api(kubeconfig, context)
        document = choose(api, platform)
        rows = explain.rows(api, document, prices.load(), events, namespace)
        services = control.rows(api, document, namespace)
    if as_json or output is Form.JSON:
        body = explain.rows_json(rows)
        tables.print_body(body | {"services": [service.as_json() for service in services]})
        return
    if rows:
        tables.print_jobs(rows)
    if services:
        tables.print_services(control.HEAD, services)
    if not rows and not services:
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
    """Print what the pods of a job or the servers of a service wrote.

    With several pods, each line begins with [INDEX], or with the pod's name.
    """
    from holdfast.job_commands.control import pod_logs
    from holdfast.support.errors import InputError

    if follow and previous:
        raise InputError(
            "an earlier attempt writes no new lines",
            got="--follow and --previous",
            allowed="one of them",
            fix=f"holdfast logs {job} --previous",
        )
    api, document, snapshot = _find(
        job,
        namespace,
        platform,
        kubeconfig,
        context,
        with_services=True,
        with_servers=True,
    )
    selection = pod_logs.Selection(index=index, previous=previous, tail=tail)
    if not follow:
        pod_logs.show(api, document, snapshot, selection)
        return
    ending = pod_logs.follow(api, document, snapshot, selection, look_again=_look_again)
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
    as_json: Json = False,
    form: Output = Form.TEXT,
) -> None:
    """Let a job save and exit, as on an eviction, and keep it for `holdfast resume`.

    A service is removed; its file starts it again. Exit 1: it stopped, and no checkpoint was
    committed after the call.
    """
    from holdfast.job_commands.control import stopping
    from holdfast.jobs import output
    from holdfast.support.progress import working

    as_json = as_json or form is Form.JSON
    api, document, snapshot = _find(
        job, namespace, platform, kubeconfig, context, with_services=True
    )
    if snapshot.kind == "Service":
        _remove(api, snapshot, now=now, yes=yes, as_json=as_json)
        return
    if snapshot.outcome:
        output.note(f"{snapshot.name} has ended: {snapshot.outcome}")
        if as_json:
            output.print_body(stopping.stop_json(snapshot, "ended"))
        return
    if stopping.is_stopped(snapshot):
        output.note(f"{snapshot.name} is stopped already")
        if as_json:
            output.print_body(stopping.stop_json(snapshot, "stopped before"))
        return
    output.ask(f"Stop {snapshot.name} in {snapshot.namespace}?", yes)
    with working(f"wait for the pods of {snapshot.name}"):
        saves = stopping.stop(api, document, snapshot, output.note, now=now)
    had_pods = bool(snapshot.active)
    for line in stopping.describe(snapshot, saves, had_pods=had_pods):
        output.note(line)
    output.note(f"Next: holdfast resume {snapshot.name}")
    if as_json:
        output.print_body(stopping.stop_json(snapshot, "stopped", saves))
    is_lost = had_pods and saves.reported and not saves.committed and not now
    raise typer.Exit(EXIT_FINDINGS if is_lost else EXIT_DONE)


def resume(
    job: JobName,
    max_usd: Annotated[
        float | None, typer.Option(help="A new limit of what the job may cost in all.")
    ] = None,
    namespace: Namespace = "",
    platform: PlatformFile = None,
    kubeconfig: Kubeconfig = None,
    context: Context = "",
    as_json: Json = False,
    form: Output = Form.TEXT,
) -> None:
    """Start a stopped job again: it takes its place in the queue and its newest checkpoint."""
    from holdfast.job_commands.control import stopping
    from holdfast.jobs import output

    api, document, snapshot = _find(job, namespace, platform, kubeconfig, context)
    stopping.resume(api, document, snapshot, max_usd)
    output.note(f"resumed {snapshot.name}")
    output.note(f"Next: holdfast explain {snapshot.name}")
    if as_json or form is Form.JSON:
        output.print_body(stopping.resume_json(snapshot, max_usd))


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
    from holdfast.job_commands.control import shell as shells

    api, _, snapshot = _find(job, namespace, platform, kubeconfig, context)
    pod = shells.choose_pod(snapshot, index)
    raise typer.Exit(shells.run(api, pod, command or ()))


def _remove(api: "Api", service: "JobSnapshot", *, now: bool, yes: bool, as_json: bool) -> None:
    """Remove a service, which has nothing to save."""
    from holdfast.jobs import output
    from holdfast.services import control

    name = service.name
    output.ask(f"Remove the service {name} and its {len(service.pods)} servers?", yes)
    removed = control.stop(api, name, service.namespace, now=now)
    for part in removed:
        output.note(f"removed {part}")
    output.note(f"Next: holdfast submit {name}.yaml, which starts it again")
    if as_json:
        output.print_body(control.removal_json(service, removed))


def _look_again(api: "Api", job: "JobSnapshot") -> "JobSnapshot":
    """Return a newer snapshot of a job or of a service."""
    from holdfast.jobs.diagnose import job_snapshot
    from holdfast.services import control, live_service

    if job.kind != "Service":
        return job_snapshot.find(api, job.name, job.namespace, with_servers=True)
    service = live_service.find(api, job.name, job.namespace)
    return control.take_snapshot(api, service) if service is not None else replace(job, pods=[])


def _find(
    job: str,
    namespace: str,
    platform: Path | None,
    kubeconfig: Path | None,
    context: str,
    *,
    with_services: bool = False,
    with_servers: bool = False,
) -> "tuple[Api, Platform, JobSnapshot]":
    """Return the cluster, its platform and the job, or the service if one has this name.

    with_servers: a Deployment of a service counts as a job. Raises InputError if there is no such
    job.
    """
    from holdfast.clients.api import Api
    from holdfast.jobs.diagnose import job_snapshot
    from holdfast.platform.cluster import choose
    from holdfast.services import control
    from holdfast.support.progress import working

    with working("ask the cluster"):
        api = Api(kubeconfig, context)
        document = choose(api, platform)
        service = control.find(api, document, job, namespace) if with_services else None
        if service is not None:
            return api, document, service
        namespaces = job_snapshot.find_namespaces(api, document, namespace)
        return api, document, job_snapshot.find(api, job, *namespaces, with_servers=with_servers)
