"""Defines the command `holdfast export`.

The function imports what it runs, so that `--help` does not wait for it.
"""

from typing import Annotated

import typer

from holdfast.support.duration_option import duration_option


def export(
    project: Annotated[
        str, typer.Option(help="Cloud project for the metrics; empty: Prometheus only.")
    ] = "",
    location: Annotated[str, typer.Option(help="Region of the cluster.")] = "",
    cluster: Annotated[str, typer.Option(help="Name of the cluster.")] = "",
    port: Annotated[int, typer.Option(help="Port of /metrics.")] = 9400,
    every_s: Annotated[float, duration_option("Time between two passes.")] = 15,
    team: Annotated[
        list[str] | None,
        typer.Option(help="TEAM=NAMESPACE for each namespace of jobs; none: training and batch."),
    ] = None,
    ratings_every_s: Annotated[
        float,
        duration_option(
            "Time between two questions to Google how obtainable machines are for which pods wait,"
            " 10m to 24h; 0: it is not asked."
        ),
    ] = 0.0,
    kubeconfig: Annotated[str, typer.Option(help="Empty: the service account of the pod.")] = "",
) -> None:
    """Watch pods, nodes, event lines and, with HOLDFAST_DATABASE_URL, the batch backlog; publish to
    Prometheus and the cloud.
    """
    from holdfast.exporter.main import serve

    serve(project, location, cluster, port, every_s, kubeconfig, team or (), ratings_every_s)
