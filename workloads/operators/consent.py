"""Before a command of the platform changes a cluster: is it the right one?"""

import sys

import typer

from holdfast.clients.api import Api
from holdfast.contract.errors import InputError
from holdfast.contract.exit_codes import EXIT_STOPPED
from holdfast.platform import Platform
from holdfast.platform.cluster import require_cluster_of


def require_consent(api: Api, platform: Platform, *, yes: bool) -> None:
    """Asks once for a cluster without a document. Raises Stopped where it is another platform's, InputError without a terminal."""
    if require_cluster_of(api, platform) or yes:
        return
    if not sys.stdin.isatty():
        raise InputError(
            "the cluster has no platform document yet", got=f"{api.cluster}, and no terminal to ask",
            allowed="an answer, or --yes for the first application", fix="add --yes (make: YES=1) if this is the right cluster",
        )  # fmt: skip
    if not typer.confirm(f"Apply {platform} to the cluster {api.cluster} for the first time?", err=True):
        raise typer.Exit(EXIT_STOPPED)
