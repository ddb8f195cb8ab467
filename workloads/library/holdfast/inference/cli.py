"""The commands `holdfast batch VERB`. Bodies import when they run, for a fast --help."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.support.command_line import CommandGroup
from holdfast.support.duration_option import duration_option
from holdfast.support.examples import examples
from holdfast.support.progress import working
from holdfast.support.values import read_settings, settings_help
from holdfast.vocabulary.exit_codes import EXIT_CODES_HELP
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW


class _BatchGroup(CommandGroup):
    """Explains errors of the database and the queue, which are no bugs of these commands."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            package = type(error).__module__.partition(".")[0]
            if package not in ("psycopg", "psycopg_pool", "holdfast"):
                raise
            from holdfast.inference.results.connect import explain

            raise explain(error) from error


app = typer.Typer(
    cls=_BatchGroup,
    help="Predict every item of a job once.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
)

SETTINGS = {
    "micro_batch": "items predicted and stored together",
    "lease_s": "seconds until a killed worker's items come back",
    "max_failures": "failures of an item before it is dead",
    "predict_timeout_s": "maximum time of a micro-batch; 0: learned",
}
"""The settings of `batch run --set`, which WorkerSettings describes."""
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
    typer.Option(min=1, max=1_000_000, help="Show this many of the newest items."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@app.command(
    "database",
    epilog=examples(
        "holdfast batch database --dir out/db",
        "holdfast batch database --database postgresql://admin@10.0.0.3/batch --grant"
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
    """Update the schema of a database and grant rights to logins; safe to repeat.

    With --dir its URI is the first line, as JSON.
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
                fix="remove the other options",
            )
        _serve(directory)
        return
    roles = schema.parse_grants(grants or [])
    with connect(database_uri(database)) as connection:
        if as_role:
            schema.act_as(connection, as_role)
        changes = schema.migrate(connection) + schema.grant(connection, roles)
    print(
        "\n".join(changes) or "nothing to do",
        file=sys.stderr,
    )


def _serve(directory: Path) -> None:
    from holdfast.inference.results import schema
    from holdfast.inference.results.connect import connect
    from holdfast.inference.results.embedded_postgres import EmbeddedPostgres, serve
    from holdfast.runtime.shutdown import of_process

    shutdown = of_process()
    with EmbeddedPostgres(directory) as server:
        with connect(server.uri) as connection:
            schema.migrate(connection)
        document = {
            "schema": "holdfast.batch-database/1",
            "uri": server.uri,
        }
        print(json.dumps(document), flush=True)
        serve(server, shutdown.wait)


@app.command(
    epilog=examples(
        "holdfast batch enqueue my-job --source documents",
        "holdfast batch enqueue my-job --source items.parquet --id-column id --body-column text",
        "holdfast batch enqueue my-job --source 'gs://my-bucket/prompts/*.jsonl'",
    )
)
def enqueue(
    job: Job,
    source: Annotated[
        str,
        typer.Option(
            help="Folder, .jsonl or .parquet file, or FOLDER/*.parquet; also below gs://BUCKET."
        ),
    ],
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
    from holdfast.inference.results.jobs import parse_deadline
    from holdfast.inference.run import PubSubOptions, open_publisher
    from holdfast.inference.sources import open_items

    items = open_items(
        job,
        source,
        id_column=id_column,
        body_column=body_column,
    )
    deadline_time = parse_deadline(deadline)
    broker = PubSubOptions(topic, subscription)
    with (
        working(f"enqueue {job}") as step,
        open_publisher(database, job, broker) as (connection, queue),
    ):
        counts = write(
            connection,
            queue,
            job,
            items,
            lambda count: step(f"{count} items"),
            deadline=deadline_time,
            subscription=subscription,
        )
    if as_json:
        document = {
            "schema": "holdfast.batch-enqueue/1",
            "job": job,
            **counts,
        }
        print(json.dumps(document))
    print(
        f"{job}: {counts['seen']} items, {counts['new']} new",
        file=sys.stderr,
    )
    print(f"Next: holdfast batch run {job}", file=sys.stderr)


@app.command(
    epilog=examples("holdfast batch run my-job --predictor my_model:make --model models/classifier")
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
    events: Annotated[
        Path | None, typer.Option("--events-file", help="File for event lines.")
    ] = None,
    window: Annotated[float, duration_option("Grace period of the pool after SIGTERM.")] = (
        DEFAULT_WINDOW.pod_s
    ),
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

    spec = PredictorSpec(
        name=predictor,
        model=model,
        checkpoints=checkpoints,
        run=run_name,
    )
    options = read_settings(
        settings or (),
        WorkerSettings,
        SETTINGS,
    )
    launch = Launch(
        job=job,
        database=database,
        predictor=spec,
        events=events,
        settings=WorkerSettings(window_s=window, **options),
        broker=PubSubOptions(topic, subscription),
    )
    # Everything is closed and recorded; the interpreter's own exit takes seconds on a busy machine.
    leave_now(run_worker(launch))


@app.command(epilog=examples("holdfast batch status my-job"))
def status(
    job: Job,
    database: Database = "",
    as_json: AsJson = False,
) -> None:
    """Show progress, rate and remaining time of a job."""
    from holdfast.inference.results.connect import connect, database_uri
    from holdfast.inference.results.status import format_table, load_status

    with connect(database_uri(database)) as connection:
        job_status = load_status(connection, job)
    if as_json:
        print(json.dumps(job_status.to_json()))
    else:
        print(format_table(job_status))


@app.command(
    epilog=examples(
        "holdfast batch failures my-job",
        "holdfast batch failures my-job --redrive",
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
                "With --redrive: only these items, which Pub/Sub may have dropped; default: all"
                " that failed."
            )
        ),
    ] = None,
    topic: Topic = "",
    subscription: Subscription = "",
    as_json: AsJson = False,
) -> None:
    """List failed items with reason and number of tries; exit 1 if there are any.

    --redrive puts them back in the queue.
    """
    from holdfast.inference.results import dead_letters
    from holdfast.inference.results.connect import connect, database_uri
    from holdfast.inference.run import PubSubOptions, open_publisher
    from holdfast.vocabulary.exit_codes import EXIT_FINDINGS

    if redrive:
        broker = PubSubOptions(topic, subscription)
        with open_publisher(database, job, broker) as (connection, queue):
            revived = dead_letters.redrive(
                connection,
                queue,
                job,
                item or [],
                subscription,
            )
        print(
            f"{job}: {len(revived)} items back in the queue",
            file=sys.stderr,
        )
        return
    with connect(database_uri(database)) as connection:
        letters = dead_letters.list_newest(connection, job, limit)
    if as_json:
        document = {
            "schema": "holdfast.batch-failures/1",
            "job": job,
            "failures": letters,
        }
        print(json.dumps(document))
    else:
        for letter in letters:
            print(_format_letter(letter))
    if letters:
        print(f"Next: holdfast batch failures {job} --redrive", file=sys.stderr)
        raise typer.Exit(EXIT_FINDINGS)


def _format_letter(letter: dict[str, object]) -> str:
    from holdfast.support.printable import printable

    name = str(letter["item"] or letter["digest"])
    reason = str(letter["reason"])
    if letter["message"]:
        reason += f": {letter['message']}"
    return f"{printable(name)}  {printable(reason)}  after {letter['failures']}"


@app.command(
    epilog=examples(
        "holdfast batch export my-job --out results.jsonl",
        "holdfast batch export my-job --out gs://my-bucket/results/my-job.parquet",
    )
)
def export(
    job: Job,
    out: Annotated[
        str, typer.Option(help="File or gs:// URL, sorted by item: .parquet, else JSON lines.")
    ],
    database: Database = "",
) -> None:
    """Write the results of a job to a file."""
    from holdfast.inference.export_file import export as write
    from holdfast.inference.results import jobs
    from holdfast.inference.results.connect import connect, database_uri

    with connect(database_uri(database)) as connection:
        jobs.require(connection, job)
        with working(f"export {job}"):
            count = write(connection, job, out)
    print(
        f"{count} rows in {out}",
        file=sys.stderr,
    )
