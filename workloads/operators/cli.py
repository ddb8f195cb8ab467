"""Commands `apply` and `doctor`. Bodies import what they need, so that --help is quick."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.support.errors import InputError
from holdfast.support.progress import working
from holdfast.vocabulary.exit_codes import EXIT_STOPPED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.clients.api import Api
    from holdfast.manifests.render_context import RenderContext
    from holdfast.platform import Platform
    from workloads.operators.install import Change

Env = Annotated[
    str, typer.Argument(metavar="ENV", help="A module of infra/environments, for example example.")
]
Kubeconfig = Annotated[
    Path | None, typer.Option(help="Default: the current context, as in kubectl.")
]
Yes = Annotated[
    bool, typer.Option("--yes", help="Do not ask before the first application to a cluster.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]


def require_consent(api: "Api", platform: "Platform", *, yes: bool) -> None:
    """Asks before the first application to a cluster.

    Raises Stopped where it is another platform's cluster, InputError without a terminal.
    """
    from holdfast.platform.cluster import require_same_cluster

    if require_same_cluster(api, platform) or yes:
        return
    if not sys.stdin.isatty():
        raise InputError(
            "the cluster has no platform document yet",
            got=f"{api.cluster}, and no terminal to ask",
            allowed="an answer, or --yes for the first application",
            fix="add --yes (make: YES=1) if this is the right cluster",
        )
    question = f"Apply {platform} to the cluster {api.cluster} for the first time?"
    if not typer.confirm(question, err=True):
        raise typer.Exit(EXIT_STOPPED)


def _report_changes(
    activity: str, changes: "Iterable[Change]", as_json: bool
) -> tuple[list[dict[str, str]], str]:
    """Prints the objects that changed, unless `as_json`. Returns them, and a count as "3 of 40"."""
    total = 0
    changed_objects: list[dict[str, str]] = []
    with working(activity):
        for change in changes:
            total += 1
            if change.verb != "unchanged":
                changed_objects.append({"verb": change.verb, "object": change.name})
    if not as_json:
        for change in changed_objects:
            print(f"{change['verb']} {change['object']}")
    return changed_objects, f"{len(changed_objects)} of {total}"


def _apply_operators(
    api: "Api",
    context: "RenderContext",
    timeout_s: float,
    *,
    as_json: bool,
) -> None:
    from holdfast.support.tables import print_json
    from workloads.operators import install, overlay
    from workloads.operators.catalogue import OPERATORS

    env = context.platform.name
    report: list[dict[str, object]] = []
    # Before anything is applied: by a tag an operator would change by itself.
    context.require_digests([operator.name for operator in OPERATORS])
    for operator in OPERATORS:
        bodies = overlay.objects(operator, context)
        changes, count = _report_changes(
            f"apply {operator.name}", install.apply(api, operator, bodies), as_json
        )
        with working(f"wait until {operator.name} answers"):
            install.wait_ready(api, operator, timeout_s)
        typer.echo(f"{operator.name} v{operator.version}: {count} changed, it answers", err=True)
        report.append(
            {
                "operator": operator.name,
                "version": operator.version,
                "changes": changes,
            }
        )
    if as_json:
        print_json("operators", environment=env, operators=report)
    typer.echo(f"Next: make apply ENV={env}", err=True)


def apply_platform(
    env: Env,
    operators: Annotated[
        bool,
        typer.Option(
            "--operators", help="Apply JobSet and Kueue instead, and wait for their webhooks."
        ),
    ] = False,
    timeout_s: Annotated[
        float,
        typer.Option(
            min=1, help="With --operators: seconds to wait for each operator's pods and webhooks."
        ),
    ] = 300,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say what it would take, give, change and delete; change nothing."
        ),
    ] = False,
    kubeconfig: Kubeconfig = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Apply the platform half: namespaces, priorities, queues, rights, the exporter, the database's
    migration. Needs no GPU.

    Shows the changes; safe to repeat.
    """
    from holdfast.clients.api import Api
    from holdfast.manifests.render_context import RenderContext
    from holdfast.platform.cluster import read_published, require_same_cluster
    from holdfast.support.tables import print_json
    from infra import effects
    from infra.describe import load_platform
    from workloads.operators import platform

    api = Api(kubeconfig)
    context = RenderContext(load_platform(env))
    if dry_run and operators:
        raise InputError(
            "--dry-run with --operators",
            got="both",
            allowed="one of them",
            fix="leave --operators out: --dry-run is of the platform's own objects",
        )
    if dry_run:
        require_same_cluster(api, context.platform)
    else:
        require_consent(api, context.platform, yes=yes)
    differences = [] if operators else effects.compare(read_published(api), context.platform)
    for effect in differences:
        typer.echo(str(effect), err=True)
    if dry_run:
        changes, count = _report_changes(
            f"compare {env} with the cluster", platform.preview(api, context), as_json
        )
        if as_json:
            takes = [effect.text for effect in differences if effect.takes]
            gives = [effect.text for effect in differences if not effect.takes]
            print_json("apply", environment=env, changes=changes, takes=takes, gives=gives)
        typer.echo(f"{count} objects would change; nothing was applied", err=True)
        return
    if operators:
        _apply_operators(api, context, timeout_s, as_json=as_json)
        return
    changes, count = _report_changes(
        f"apply the platform of {env}", platform.apply(api, context), as_json
    )
    if as_json:
        print_json("apply", environment=env, changes=changes)
    typer.echo(f"{count} objects changed; nothing among them needs a GPU", err=True)
    typer.echo("Next: holdfast try", err=True)


def doctor(env: Env, kubeconfig: Kubeconfig = None, as_json: Json = False) -> None:
    """List what the cluster of ENV lacks before a first job, with the fix. Read-only."""
    from functools import partial

    from holdfast.clients import gcloud
    from holdfast.clients.api import Api
    from holdfast.platform.cluster import require_same_cluster
    from holdfast.support import checks
    from infra.describe import load_platform
    from infra.environments import load
    from workloads.operators import alert_series
    from workloads.operators.doctor_probes import probes

    api = Api(kubeconfig)
    platform = load_platform(env)
    require_same_cluster(api, platform)
    with working(f"examine the cluster of {env}"):
        series = partial(alert_series.judge, api, load(env).alerts.modules)
        all_probes = (*probes(api, gcloud.ask), ("series of alerts", series))
        results = list(checks.examine(platform, all_probes))
    raise typer.Exit(checks.show(results, as_json=as_json))
