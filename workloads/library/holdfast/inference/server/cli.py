"""The commands `holdfast serve VERB`. Bodies import when they run, for a fast --help."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.inference.router.cli import app as router
from holdfast.support.command_line import CommandGroup
from holdfast.support.duration_option import duration_option
from holdfast.support.examples import examples
from holdfast.support.values import read_settings, settings_help
from holdfast.vocabulary.environment import ENV_WINDOW_S
from holdfast.vocabulary.exit_codes import EXIT_CODES_HELP
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW
from holdfast.vocabulary.serving import (
    HOOK_PORT,
    KEYS_FILE,
    PORT,
    PROXIES,
    PROXIES_FILE,
    SIDECAR_PORT,
)

SETTINGS = {
    "host": "address to listen on",
    "body_bytes": "most bytes of a request",
    "connections": "most connections",
    "idle_s": "seconds that a connection may wait for a request",
}
"""The settings of `serve run --set`, which ServerSettings describes."""

app = typer.Typer(
    cls=CommandGroup,
    help="Answer requests online.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
)
app.add_typer(router)


@app.command(
    epilog=examples(
        "holdfast serve run --predictor gpt --checkpoints gs://my-bucket/checkpoints --run my-run"
    )
)
def run(
    predictor: Annotated[
        str, typer.Option(help="gpt, entropy, or MODULE:FUNCTION of your own.")
    ] = "gpt",
    model: Annotated[str, typer.Option(help="Folder of the model, for your FUNCTION.")] = "",
    checkpoints: Annotated[str, typer.Option(help="Checkpoint URL of the model (gpt).")] = "",
    run_name: Annotated[
        str, typer.Option("--run", help="The training run whose newest commit is served.")
    ] = "",
    name: Annotated[str, typer.Option(help="The model's name in URLs.")] = "model",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = PORT,
    window: Annotated[
        float,
        duration_option("Grace period of the pool after SIGTERM.", envvar=ENV_WINDOW_S),
    ] = DEFAULT_WINDOW.pod_s,
    longest_request: Annotated[
        float,
        duration_option("Maximum time of a request; 0: as long as the grace period allows."),
    ] = 0,
    batch: Annotated[int, typer.Option(help="Maximum number of items per batch.")] = 32,
    queue: Annotated[int, typer.Option(help="Maximum number of waiting requests.")] = 1024,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=settings_help(SETTINGS))
    ] = None,
) -> None:
    """Serve until SIGTERM (exit 143), then drain: become unready, finish open requests, exit."""
    from holdfast.inference.predictor.spec import PredictorSpec
    from holdfast.inference.server.process import serve
    from holdfast.inference.server.settings import ServerSettings
    from holdfast.runtime.shutdown import leave_now

    server_settings = ServerSettings(
        model=name,
        port=port,
        window_s=window,
        longest_request_s=longest_request,
        batch_items=batch,
        queue_requests=queue,
        **read_settings(settings or (), ServerSettings, SETTINGS),
    )
    spec = PredictorSpec(
        name=predictor,
        model=model,
        checkpoints=checkpoints,
        run=run_name,
    )
    # A thread may wait for a model that hangs, so no thread is joined.
    leave_now(serve(spec, server_settings))


@app.command(
    epilog=examples("holdfast serve sidecar --health http://127.0.0.1:8000/health --window 15")
)
def sidecar(
    health: Annotated[
        str, typer.Option(help="Health URL of the server, which answers 200 while it serves.")
    ],
    window: Annotated[
        float,
        duration_option("Grace period of the pool after the notice.", envvar=ENV_WINDOW_S),
    ] = DEFAULT_WINDOW.pod_s,
    drain: Annotated[str, typer.Option(help="URL for a POST request when the drain begins.")] = "",
    count: Annotated[
        str, typer.Option(help="URL whose last number is the number of open requests.")
    ] = "",
    port: Annotated[
        int,
        typer.Option(
            help="Port of the readiness probe.",
            max=65_535,
            min=0,
        ),
    ] = SIDECAR_PORT,
    hook_port: Annotated[
        int,
        typer.Option(
            help="Port of the preStop hook.",
            max=65_535,
            min=0,
        ),
    ] = HOOK_PORT,
) -> None:
    """Add readiness and a preStop hook to a server that stops at once on SIGTERM.

    Runs until SIGTERM.
    """
    from holdfast.inference.proxy.sidecar import Sidecar
    from holdfast.runtime.shutdown import of_process
    from holdfast.support.values import between
    from holdfast.vocabulary.serving import sidecar_budget

    between("the window is out of range", window, 1.0, 86_400.0)
    shutdown = of_process()
    hold_s, rest_s = sidecar_budget(window)
    sidecar = Sidecar(
        health_url=health,
        hold_s=hold_s,
        most_s=rest_s,
        drain_url=drain,
        count_url=count,
    )
    with sidecar.listening("0.0.0.0", port), sidecar.listening("0.0.0.0", hook_port, hook=True):
        shutdown.wait()


@app.command(
    hidden=True,  # manifests start it
    epilog=examples(
        "holdfast serve endpoints --service model --namespace team-research --out"
        " /endpoints/eds.json"
    ),
)
def endpoints(
    service: Annotated[str, typer.Option(help="Service whose ready pods get requests.")],
    namespace: Annotated[str, typer.Option(help="Its namespace.")],
    out: Annotated[
        Path, typer.Option(help="File that the proxy reads; it is replaced atomically.")
    ],
    cluster: Annotated[str, typer.Option(help="The proxy's name for these servers.")] = "servers",
    health_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65_535,
            help="Port of the pods' readiness check; 0: the port for requests.",
        ),
    ] = 0,
    share_rejections: Annotated[
        bool,
        typer.Option(
            "--share-rejections",
            help="Tell servers of `serve run` which requests ended the model of another one.",
        ),
    ] = False,
    keys: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a mounted Secret with a file for each caller: its key. They are"
            f" written next to --out, as {KEYS_FILE}."
        ),
    ] = None,
    proxies: Annotated[
        str,
        typer.Option(
            help="Service of the proxies, which share the quotas of callers. They are written next"
            f" to --out, as {PROXIES_FILE}."
        ),
    ] = "",
) -> None:
    """Update a proxy's endpoints from the EndpointSlices of a Service. Runs until SIGTERM."""
    from holdfast.inference.proxy.caller_keys import KeyFollower
    from holdfast.inference.proxy.endpoints import Follower
    from holdfast.inference.proxy.rejection_sharing import RejectionSharer
    from holdfast.runtime.shutdown import of_process

    shutdown = of_process()
    # Threads write these files again, wherever the process works by then.
    out = out.absolute()
    if proxies:
        Follower(
            namespace=namespace,
            service=proxies,
            cluster=PROXIES,
            out=out.with_name(PROXIES_FILE),
        ).start()
    if keys is not None:
        key_follower = KeyFollower(keys, out.with_name(KEYS_FILE))
        key_follower.update()  # before the endpoints: Envoy starts when it has both files
        key_follower.start()
    follower = Follower(
        namespace=namespace,
        service=service,
        cluster=cluster,
        out=out,
        health_port=health_port,
    )
    # The thread may block in a read: the process ends with the main thread and does not join it.
    follower.start()
    if share_rejections:
        RejectionSharer(lambda: follower.servers).start()
    shutdown.wait()
