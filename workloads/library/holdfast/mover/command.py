"""Defines the command `holdfast move`.

The function imports what it runs, so that `--help` does not wait for it.
"""

from typing import Annotated

import typer

from holdfast.support.duration_option import duration_option


def move(
    project: Annotated[str, typer.Option(help="Cloud project whose log holds the event lines.")],
    cluster: Annotated[str, typer.Option(help="Name of the cluster.")],
    every_s: Annotated[float, duration_option("Time between two passes.")] = 10,
    team: Annotated[
        list[str] | None,
        typer.Option(help="TEAM=NAMESPACE for each namespace of jobs; none: training and batch."),
    ] = None,
    faulty_nodes_per_hour: Annotated[
        int,
        typer.Option(
            help="Spot nodes with a broken GPU to replace in an hour; 0 only reports them."
        ),
    ] = 0,
    kubeconfig: Annotated[str, typer.Option(help="Empty: the service account of the pod.")] = "",
) -> None:
    """Move jobs between Spot, flex-start and on-demand as their plans say, and write the receipts
    of those that end.
    """
    from holdfast.mover.main import serve

    serve(project, cluster, every_s, faulty_nodes_per_hour, kubeconfig, team or ())
