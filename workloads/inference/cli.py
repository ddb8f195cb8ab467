"""The doors `python -m workloads batch VERB`. Bodies import what they need when they run."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from infra.contract.errors import EXIT_CODES_HELP
from infra.contract.lifecycle import DEFAULT_WINDOW

app = typer.Typer(help="Predict every item of a job once.", epilog=EXIT_CODES_HELP, no_args_is_help=True)

Job = Annotated[str, typer.Argument(help="Name of the job.")]
Database = Annotated[str, typer.Option("--database", help="postgresql:// URI; else HOLDFAST_DATABASE_URL.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@app.command()
def database(
    directory: Annotated[Path, typer.Option("--dir", help="Folder of the database; made when missing.")],
    port: Annotated[int | None, typer.Option(help="Also listen on 127.0.0.1; a unix socket needs none.")] = None,
) -> None:
    """Serve an embedded PostgreSQL until SIGTERM; its URI is the first line, as JSON."""
    from workloads.inference import schema
    from workloads.inference.connect import connect
    from workloads.inference.database import EmbeddedPostgres, serve
    from workloads.runtime.shutdown import of_process

    shutdown = of_process()
    with EmbeddedPostgres(directory, tcp_port=port) as server:
        with connect(server.uri) as connection:
            schema.migrate(connection)
        print(json.dumps({"schema": "holdfast.batch-database/1", "uri": server.uri}), flush=True)
        serve(server, shutdown.wait)


@app.command()
def migrate(database: Database = "") -> None:
    """Bring the database's schema up to this code. Needs the database's owner."""
    from workloads.inference import schema
    from workloads.inference.connect import connect, database_uri

    with connect(database_uri(database)) as connection:
        applied = schema.migrate(connection)
    print("\n".join(applied) or "nothing to do", file=sys.stderr)


@app.command()
def enqueue(
    job: Job,
    source: Annotated[Path, typer.Option(help="Folder of documents.")],
    pattern: Annotated[str, typer.Option(help="Files of the folder to take.")] = "*",
    database: Database = "",
    as_json: AsJson = False,
) -> None:
    """Queue every file of a folder, once however often this runs."""
    from workloads.inference.items import checked_job
    from workloads.inference.run import enqueue_source

    done = enqueue_source(database, checked_job(job), source, pattern)
    if as_json:
        print(json.dumps({"schema": "holdfast.batch-enqueue/1", "job": job, **done}))
    print(f"{job}: {done['seen']} items, {done['new']} new\nNext: python -m workloads batch run {job}", file=sys.stderr)


@app.command()
def run(
    job: Job,
    database: Database = "",
    predictor: Annotated[str, typer.Option(help="gpt or entropy.")] = "gpt",
    checkpoints: Annotated[str, typer.Option(help="Checkpoint URL of the model (gpt).")] = "",
    run_name: Annotated[str, typer.Option("--run", help="The training run whose newest commit is used.")] = "",
    events: Annotated[Path | None, typer.Option(help="File for event lines.")] = None,
    window: Annotated[float, typer.Option(help="Seconds that the pool grants after SIGTERM.")] = float(
        DEFAULT_WINDOW.pod_s
    ),
    micro_batch: Annotated[int, typer.Option(help="Items predicted and committed together.")] = 32,
    lease: Annotated[float, typer.Option(help="Seconds until a killed worker's items come back.")] = 10.0,
    max_failures: Annotated[int, typer.Option(help="Processing errors of an item before it is dead.")] = 3,
    recompute: Annotated[bool, typer.Option(help="Do all items again under this configuration.")] = False,
) -> None:
    """Work until the job is drained (exit 0) or SIGTERM asks to leave (exit 143)."""
    from workloads.inference.run import Launch, run_worker
    from workloads.inference.settings import WorkerSettings

    settings = WorkerSettings(micro_batch=micro_batch, lease_s=lease, window_s=window, max_failures=max_failures)
    launch = Launch(
        job=job,
        database=database,
        predictor=predictor,
        checkpoints=checkpoints,
        run=run_name,
        events=events,
        settings=settings,
        recompute=recompute,
    )
    raise typer.Exit(run_worker(launch))


@app.command()
def status(job: Job, database: Database = "", as_json: AsJson = False) -> None:
    """Done, held, waiting, failed; rate and time to go."""
    from workloads.inference.connect import connect, database_uri
    from workloads.inference.status import read_status, table

    with connect(database_uri(database)) as connection:
        found = read_status(connection, job)
    if as_json:
        print(json.dumps(found.to_json()))
    else:
        print(table(found))


@app.command()
def export(
    job: Job,
    out: Annotated[Path, typer.Option(help="File of JSON lines, sorted by item.")],
    database: Database = "",
) -> None:
    """Write the results of a job to a file."""
    from workloads.inference import jobs
    from workloads.inference.connect import connect, database_uri
    from workloads.inference.export import export_lines

    with connect(database_uri(database)) as connection:
        jobs.require(connection, job)
        count = export_lines(connection, job, out)
    print(f"{count} rows in {out}", file=sys.stderr)
