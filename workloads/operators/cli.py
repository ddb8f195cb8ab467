"""Commands `operators apply|render|vendor`. Bodies import what they need, so that --help is quick."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.contract.examples import examples
from holdfast.contract.progress import working

if TYPE_CHECKING:
    from holdfast.manifests.render_context import RenderContext

app = typer.Typer(
    help="JobSet and Kueue: pinned, with the platform's settings.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
Env = Annotated[str, typer.Argument(metavar="ENV", help="A module of infra/environments, for example example.")]


def _require_images(context: "RenderContext") -> None:
    """Before anything is applied: by a tag an operator would change by itself."""
    from workloads.operators.catalogue import OPERATORS

    context.require_digests([each.name for each in OPERATORS], f"make operators-pin ENV={context.platform.name}")


@app.command(epilog=examples("python -m workloads operators apply example"))
def apply(
    env: Env,
    kubeconfig: Annotated[Path | None, typer.Option(help="Default: the current context, as in kubectl.")] = None,
    timeout_s: Annotated[
        float, typer.Option(min=1, help="Seconds to wait for each operator's pods and webhooks.")
    ] = 300,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before the first application to a cluster.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Apply JobSet and Kueue, wait for their webhooks, and show the changes. Safe to repeat."""
    from holdfast.clients.api import Api
    from holdfast.manifests.render_context import RenderContext
    from infra.describe import described
    from workloads.operators import install, overlay
    from workloads.operators.catalogue import OPERATORS
    from workloads.operators.consent import require_consent

    context = RenderContext(described(env))
    api, report = Api(kubeconfig), list[dict[str, object]]()
    require_consent(api, context.platform, yes=yes)
    _require_images(context)
    for operator in OPERATORS:
        with working(f"apply {operator.name}"):
            every = list(install.apply(api, operator, overlay.objects(operator, context)))
        changed = [change for change in every if change.verb != "unchanged"]
        for change in changed if not as_json else ():
            print(f"{change.verb} {change.name}")
        with working(f"wait until {operator.name} answers"):
            install.wait_ready(api, operator, timeout_s)
        typer.echo(f"{operator.name} v{operator.version}: {len(changed)} of {len(every)} changed, it answers", err=True)
        listed = [{"verb": change.verb, "object": change.name} for change in changed]
        report.append({"operator": operator.name, "version": operator.version, "changes": listed})
    if as_json:
        print(json.dumps({"schema": "holdfast.operators/1", "environment": env, "operators": report}, indent=1))
    typer.echo(f"Next: make apply ENV={env}", err=True)


@app.command(epilog=examples("python -m workloads operators render example --out gitops/operators"))
def render(
    env: Env, out: Annotated[Path, typer.Option(help="Folder for a GitOps controller; created if missing.")]
) -> None:
    """Write the manifests that `apply` would send, one file for each operator."""
    from holdfast.manifests.render_context import RenderContext
    from infra.describe import described
    from workloads.operators import overlay

    context = RenderContext(described(env))
    _require_images(context)
    out.mkdir(parents=True, exist_ok=True)
    for path in overlay.write(context, out):
        print(path)


@app.command(epilog=examples("python -m workloads operators vendor"))
def vendor(
    go: Annotated[str, typer.Option(help="The go command.")] = "go",
    kubectl: Annotated[str, typer.Option(help="The kubectl command; it includes kustomize.")] = "kubectl",
) -> None:
    """Render upstream's manifests of the pinned versions again, from their Go modules."""
    from workloads.operators import vendor as room

    with working("render upstream's manifests"):
        changed = room.vendor(go, kubectl)
    for path in changed:
        print(path)
    typer.echo(f"{len(changed)} files changed", err=True)
