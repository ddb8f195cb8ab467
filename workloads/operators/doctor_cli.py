"""The command `doctor`. The body imports what it needs, so that --help is quick."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.contract.progress import working


def doctor(
    env: Annotated[str, typer.Argument(metavar="ENV", help="A module of infra/environments, for example example.")],
    kubeconfig: Annotated[Path | None, typer.Option(help="Default: the current context, as in kubectl.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """What the cluster of ENV lacks before a first job. Read-only; says how to fix it."""
    from holdfast import checks
    from holdfast.clients import gcloud
    from holdfast.clients.api import Api
    from holdfast.platform.cluster import require_cluster_of
    from infra.describe import described
    from workloads.operators.examination import probes

    api, platform = Api(kubeconfig), described(env)
    require_cluster_of(api, platform)
    with working(f"examine the cluster of {env}"):
        found = list(checks.examine(platform, probes(api, gcloud.ask)))
    raise typer.Exit(checks.show(found, as_json=as_json))
