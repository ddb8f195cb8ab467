"""The commands `python -m holdfast batch VERB`. Bodies import what they need when they run, so that
--help is fast.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast.support.examples import examples
from holdfast.support.progress import working
from holdfast.support.values import assigned, settings_help
from holdfast.vocabulary.exit_codes import EXIT_CODES_HELP
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW


class _Explaining(TyperGroup):
    """What the database or the queue refuses is no bug of these commands."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in (
                "psycopg",
                "psycopg_pool",
                "holdfast",
            ):
                raise
            from holdfast.inference.results.connect import explained

            raise explained(error) from error


app = typer.Typer(
    cls=_Explaining,
    help="Predict every item of a job once.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
)

SETTINGS = {
    "micro_batch": "items predicted and stored together",
    "lease_s": "seconds until a killed worker's items come back",
    "max_failures": "of an item before it is dead",
    "predict_timeout_s": "of a micro-batch; 0: learned",
}
"""Of `batch run --set`; WorkerSettings describes them."""
Job = Annotated[str, typer.Argument(help="Name of the job.")]
Database = Annotated[
    str, typer.Option("--database", help="postgresql:// URI; else HOLDFAST_DATABASE_URL.")
]
Topic = Annotated[
    str,
    typer.Option(help="Pub/Sub topic (projects/P/topics/T) instead of the queue in PostgreSQL."),
]
Subscription = Annotated[str, typer.Option(help="Its subscription (projects/P/subscriptions/S).")]
Limit = Annotated[
    int,
    typer.Option(
        min=1,
        max=1_000_000,
        help="Show this many of the newest items.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@app.command(
    "database",
    epilog=examples(
        "python -m holdfast batch database --dir out/db",
        "python -m holdfast batch database --database postgresql://admin@10.0.0.3/batch --grant"
        " worker=holdfast_worker",
    ),
)
def prepare(
    database: Database = "",
    as_role: Annotated[
        str,
        typer.Option(
            "--as-role", help="Owner of the schema; the login must be a member of this role."
        ),
    ] = "",
    grants: Annotated[
        list[str] | None,
        typer.Option(
            "--grant", help="LOGIN=holdfast_worker or LOGIN=holdfast_exporter; repeatable."
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="Serve an embedded PostgreSQL in this folder until SIGTERM instead."
        ),
    ] = None,
) -> None:
    """Update the schema of a database and grant rights to logins; safe to repeat. With --dir its
    URI is the first line, as JSON.
    """
    from holdfast.inference.results import schema
    from holdfast.inference.results.connect import connect, database_uri
    from holdfast.support.errors import InputError

    if directory is not None:
        if database or as_role or grants:
            raise InputError(
                "an embedded database has one login",
                got="--dir with options of another database",
                allowed="--dir alone",
                fix="leave the others out",
            )
        _serve(directory)
        return
    wanted = schema.grants_of(grants or [])
    with connect(database_uri(database)) as connection:
        if as_role:
            schema.act_as(connection, as_role)
        changes = [*schema.migrate(connection), *schema.grant(connection, wanted)]
    print("\n".join(changes) or "nothing to do", file=sys.stderr)


def _serve(directory: Path) -> None:
    from holdfast.inference.results import schema
    from holdfast.inference.results.connect import connect
    from holdfast.inference.results.embedded_postgres import EmbeddedPostgres, serve
    from holdfast.runtime.shutdown import of_process

    shutdown = of_process()
    with EmbeddedPostgres(directory) as server:
        with connect(server.uri) as connection:
            schema.migrate(connection)
        print(json.dumps({"schema": "holdfast.batch-database/1", "uri": server.uri}), flush=True)
        serve(server, shutdown.wait)


@app.command(
    epilog=examples(
        "python -m holdfast batch enqueue my-job --source documents",
        "python -m holdfast batch enqueue my-job --source items.parquet --id-column id"
        " --body-column text",
    )
)
def enqueue(
    job: Job,
    source: Annotated[str, typer.Option(help="Folder, or .jsonl or .parquet file.")],
    id_column: Annotated[str, typer.Option(help="Column with the item's id.")] = "id",
    body_column: Annotated[
        str, typer.Option(help="Column with the content; default: the whole row.")
    ] = "",
    deadline: Annotated[
        str, typer.Option(help="Deadline (RFC 3339); it determines the number of replicas.")
    ] = "",
    database: Database = "",
    topic: Topic = "",
    subscription: Subscription = "",
    as_json: AsJson = False,
) -> None:
    """Queue every item of a source. Safe to repeat: each item is queued once."""
    from holdfast.inference.enqueue import enqueue as write
    from holdfast.inference.results.jobs import deadline_of
    from holdfast.inference.run import PubSubOptions, publishing
    from holdfast.inference.sources import items_of

    items = items_of(
        job,
        source,
        id_column=id_column,
        body_column=body_column,
    )
    at = deadline_of(deadline)
    broker = PubSubOptions(topic, subscription)
    with (
        working(f"enqueue {job}") as step,
        publishing(database, job, broker) as (connection, queue),
    ):
        done = write(
            connection,
            queue,
            job,
            items,
            lambda seen: step(f"{seen} items"),
            deadline=at,
            subscription=subscription,
        )
    if as_json:
        print(
            json.dumps(
                {
                    "schema": "holdfast.batch-enqueue/1",
                    "job": job,
                    **done,
                }
            )
        )
    print(
        f"{job}: {done['seen']} items, {done['new']} new\nNext: python -m holdfast batch run {job}",
        file=sys.stderr,
    )


@app.command(
    epilog=examples(
        "python -m holdfast batch run my-job --predictor my_model:make --model models/classifier"
    )
)
def run(
    job: Job,
    database: Database = "",
    predictor: Annotated[
        str, typer.Option(help="gpt, entropy, or MODULE:FUNCTION of your own.")
    ] = "gpt",
    model: Annotated[str, typer.Option(help="Folder of the model, for your FUNCTION.")] = "",
    checkpoints: Annotated[str, typer.Option(help="Checkpoint URL of the model (gpt).")] = "",
    run_name: Annotated[
        str, typer.Option("--run", help="The training run whose newest commit is used.")
    ] = "",
    events: Annotated[Path | None, typer.Option(help="File for event lines.")] = None,
    window: Annotated[
        float, typer.Option(help="Grace period of the pool, in seconds after SIGTERM.")
    ] = float(DEFAULT_WINDOW.pod_s),
    topic: Topic = "",
    subscription: Subscription = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=settings_help(SETTINGS))
    ] = None,
) -> None:
    """Process items until the job is done (exit 0) or SIGTERM arrives (exit 143)."""
    from holdfast.inference.predictor.spec import PredictorSpec
    from holdfast.inference.run import Launch, PubSubOptions, run_worker
    from holdfast.inference.worker.settings import WorkerSettings
    from holdfast.runtime.shutdown import leave_now

    launch = Launch(
        job=job,
        database=database,
        predictor=PredictorSpec(
            name=predictor,
            model=model,
            checkpoints=checkpoints,
            run=run_name,
        ),
        events=events,
        settings=WorkerSettings(
            window_s=window, **assigned(settings or (), WorkerSettings, SETTINGS)
        ),
        broker=PubSubOptions(topic, subscription),
    )
    # All is closed and written down; torn down piece by piece, an interpreter on a busy machine
    # takes seconds more.
    leave_now(run_worker(launch))


@app.command(epilog=examples("python -m holdfast batch status my-job"))
def status(
    job: Job,
    database: Database = "",
    as_json: AsJson = False,
) -> None:
    """Show progress, rate and remaining time of a job."""
    from holdfast.inference.results.connect import connect, database_uri
    from holdfast.inference.results.status import read_status, table

    with connect(database_uri(database)) as connection:
        found = read_status(connection, job)
    print(json.dumps(found.to_json()) if as_json else table(found))


@app.command(
    epilog=examples(
        "python -m holdfast batch failures my-job",
        "python -m holdfast batch failures my-job --redrive",
    )
)
def failures(
    job: Job,
    database: Database = "",
    limit: Limit = 100,
    redrive: Annotated[
        bool, typer.Option("--redrive", help="Put failed items back in the queue instead.")
    ] = False,
    item: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "With --redrive: only these items, which Pub/Sub may have given up; default: all"
                " that failed."
            )
        ),
    ] = None,
    topic: Topic = "",
    subscription: Subscription = "",
    as_json: AsJson = False,
) -> None:
    """List failed items with reason and number of tries; exit 1 if there are any. --redrive puts
    them back in the queue.
    """
    from holdfast.inference.results.connect import connect, database_uri
    from holdfast.inference.results.dead_letters import newest
    from holdfast.inference.results.dead_letters import redrive as put_back
    from holdfast.inference.run import PubSubOptions, publishing
    from holdfast.support.printable import printable
    from holdfast.vocabulary.exit_codes import EXIT_FINDINGS

    if redrive:
        with publishing(database, job, PubSubOptions(topic, subscription)) as (connection, queue):
            revived = put_back(connection, queue, job, item or [], subscription)
        print(f"{job}: {len(revived)} items back in the queue", file=sys.stderr)
        return
    with connect(database_uri(database)) as connection:
        found = newest(connection, job, limit)
    if as_json:
        print(
            json.dumps(
                {
                    "schema": "holdfast.batch-failures/1",
                    "job": job,
                    "failures": found,
                }
            )
        )
    else:
        for dead_letter in found:
            why = ": ".join(filter(None, (str(dead_letter["reason"]), str(dead_letter["message"]))))
            name = dead_letter["item"] or dead_letter["digest"]
            print(f"{printable(str(name))}  {printable(why)}  after {dead_letter['failures']}")
    if found:
        print(f"Next: python -m holdfast batch failures {job} --redrive", file=sys.stderr)
        raise typer.Exit(EXIT_FINDINGS)


@app.command(epilog=examples("python -m holdfast batch export my-job --out results.jsonl"))
def export(
    job: Job,
    out: Annotated[str, typer.Option(help="File of JSON lines, sorted by item.")],
    database: Database = "",
) -> None:
    """Write the results of a job to a file."""
    from holdfast.inference.results import jobs
    from holdfast.inference.results.connect import connect, database_uri
    from holdfast.inference.results.export import export as write

    with connect(database_uri(database)) as connection:
        jobs.require(connection, job)
        with working(f"export {job}"):
            count = write(connection, job, out)
    print(f"{count} rows in {out}", file=sys.stderr)
