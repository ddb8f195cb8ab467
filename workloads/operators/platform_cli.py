"""The command `apply`. The body imports what it needs, so that --help is quick."""

import json
from pathlib import Path
from typing import Annotated

import typer

from holdfast.contract.progress import working


def apply(
    env: Annotated[str, typer.Argument(metavar="ENV", help="A module of infra/environments, for example example.")],
    kubeconfig: Annotated[Path | None, typer.Option(help="Default: the current context, as in kubectl.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before the first application to a cluster.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Apply the platform half: namespaces, priorities, queues, rights, the exporter, the database's migration. Needs no GPU."""
    from holdfast.clients.api import Api
    from holdfast.manifests.render_context import RenderContext
    from infra.describe import described
    from workloads.operators import platform
    from workloads.operators.consent import require_consent

    api, context = Api(kubeconfig), RenderContext(described(env))
    require_consent(api, context.platform, yes=yes)
    with working(f"apply the platform of {env}"):
        every = list(platform.apply(api, context))
    changed = [change for change in every if change.verb != "unchanged"]
    if as_json:
        listed = [{"verb": change.verb, "object": change.name} for change in changed]
        print(json.dumps({"schema": "holdfast.apply/1", "environment": env, "changes": listed}, indent=1))
    for change in changed if not as_json else ():
        print(f"{change.verb} {change.name}")
    typer.echo(f"{len(changed)} of {len(every)} objects changed; nothing among them needs a GPU", err=True)
    typer.echo("Next: holdfast try", err=True)
