"""The command line of monitoring: `python -m monitoring report|alerts ...`. Bodies import; this module stays light."""

from infra.contract import interpreter as interpreter  # first: all below needs what `make setup` installs

# isort: split
from pathlib import Path
from typing import Annotated

import typer

from holdfast.command_line import run_app
from holdfast.contract.examples import examples
from holdfast.contract.exit_codes import EXIT_CODES_HELP

app = typer.Typer(
    help=f"Watch what was taken away, and what it cost. {EXIT_CODES_HELP}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes around the help would take as long as all the rest of it
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command(
    epilog=examples(
        "python -m monitoring report --events out/demo/events --out out/report.html",
        "python -m monitoring report --project my-project --since 7d",
    )
)
def report(
    events: Annotated[Path | None, typer.Option(help="Folder with event files (*.jsonl).")] = None,
    project: Annotated[str, typer.Option(help="Cloud project to read instead, where the exporter writes.")] = "",
    summary: Annotated[Path | None, typer.Option(help="What a demo or drill found out, as JSON.")] = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("out/report.html"),
    since: Annotated[
        str, typer.Option(help="Only this long before the newest event, or with --project from a midnight: 7d, 12h.")
    ] = "",
    cluster: Annotated[str, typer.Option(help="With --project: this cluster alone; empty: each apart.")] = "",
    machine: Annotated[str, typer.Option(help="Machine type to price by; empty: that of the node lines.")] = "",
    region: Annotated[str, typer.Option(help="Region to price in, with --machine.")] = "",
    as_json: Json = False,
) -> None:
    """Write where the time went, what evictions cost, and whether the objectives held."""
    from monitoring.report.cli import one_source, write_cloud_report, write_report

    if source := one_source(events, project, cluster, summary, machine, region):
        raise typer.Exit(
            write_report(source, summary, out, since=since, machine=machine, region=region, as_json=as_json)
        )
    raise typer.Exit(write_cloud_report(project, out, cluster=cluster, since=since, as_json=as_json))


@app.command(
    epilog=examples(
        "python -m monitoring receipt my-run --events events --usd-per-hour 0.6 --on-demand-usd-per-hour 2.1"
    )
)
def receipt(
    events: Annotated[Path, typer.Option(help="Folder with event files (*.jsonl).")],
    job: Annotated[str, typer.Argument(help="The job that ended.")],
    usd_per_hour: Annotated[float, typer.Option(help="What one machine of the job costs.")],
    on_demand_usd_per_hour: Annotated[float, typer.Option(help="What it costs on demand.")],
    annotate: Annotated[str, typer.Option(help="Namespace of the JobSet or Job that gets the receipt.")] = "",
    kubeconfig: Annotated[str, typer.Option(help="Empty: the service account of the pod.")] = "",
    as_json: Json = False,
) -> None:
    """Print what a job cost, what evictions wasted of it, and what on-demand would have cost."""
    from monitoring.cost.receipt import show

    show(
        events,
        job,
        usd_per_hour,
        on_demand_usd_per_hour,
        as_json=as_json,
        namespace=annotate,
        kubeconfig=kubeconfig,
    )


@app.command(epilog=examples("python -m monitoring alerts"))
def alerts(
    write: Annotated[bool, typer.Option("--write", help="Renew the table in monitoring/alerting/runbook.md.")] = False,
    as_json: Json = False,
) -> None:
    """List every alert with severity, source and reason."""
    from monitoring.alerting.cli import show_alerts

    show_alerts(write=write, as_json=as_json)


@app.command(
    epilog=examples(
        "python -m monitoring churn --events events",
        "python -m monitoring churn --project my-project --since 30d --json",
    )
)
def churn(
    events: Annotated[Path | None, typer.Option(help="Folder with event files (*.jsonl) of the node watcher.")] = None,
    project: Annotated[str, typer.Option(help="Cloud project to read instead, where the exporter writes.")] = "",
    since: Annotated[
        str, typer.Option(help="With --project: how far back, from a midnight; 30d, 12h. Empty: 30d.")
    ] = "",
    history: Annotated[
        str, typer.Option(help="With --project: folder or gs:// address that keeps days beyond the cloud's memory.")
    ] = "",
    cluster: Annotated[str, typer.Option(help="With --project: this cluster alone; empty: all added up.")] = "",
    half_life_days: Annotated[float, typer.Option(help="After so long an observation counts half.")] = 14.0,
    as_json: Json = False,
) -> None:
    """Print preemptions per node-hour by pool, machine type, zone and age, with their interval."""
    from monitoring.churn.cli import show_churn

    show_churn(events, project, since, half_life_days, as_json=as_json, history=history, cluster=cluster)


@app.command(epilog=examples("python -m monitoring export --kubeconfig ~/.kube/config --port 9400"))
def export(
    project: Annotated[str, typer.Option(help="Cloud project that gets the metrics; empty: Prometheus only.")] = "",
    location: Annotated[str, typer.Option(help="Region of the cluster.")] = "",
    cluster: Annotated[str, typer.Option(help="Name of the cluster.")] = "",
    events: Annotated[Path | None, typer.Option(help="Folder with event files to follow.")] = None,
    lines: Annotated[
        Path | None, typer.Option(help="File for lines about nodes and waits; none: standard output.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of /metrics.")] = 9400,
    every_s: Annotated[float, typer.Option(help="Seconds between two passes.")] = 15.0,
    kubeconfig: Annotated[str, typer.Option(help="Empty: the service account of the pod.")] = "",
) -> None:
    """Watch pods, nodes, event files and, with HOLDFAST_DATABASE_URL, the batch backlog; publish to Prometheus and the cloud."""
    from monitoring.exporter.main import serve

    serve(project, location, cluster, events, lines, port, every_s, kubeconfig)


if __name__ == "__main__":
    run_app(app)
