"""The command `holdfast serve router`. Its body imports when it runs, for a fast --help."""

from typing import Annotated

import typer

from holdfast.support.duration_option import duration_option
from holdfast.support.examples import examples
from holdfast.support.values import read_settings, settings_help
from holdfast.vocabulary.environment import ENV_WINDOW_S
from holdfast.vocabulary.exit_codes import EXIT_CODES_HELP
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW
from holdfast.vocabulary.serving import ROUTER_PORT

SETTINGS = {
    "host": "address to listen on",
    "body_bytes": "most bytes of a request",
    "stream_bytes": "most bytes of a stream's tokens, and of a text that is not streamed",
    "connections": "most connections",
    "idle_s": "seconds that a connection may wait for a request, or for its client to read",
    "comment_s": "seconds between comments in a stream that waits for a server",
    "connect_s": "seconds to connect to a server",
    "first_token_s": "silence before the first token that counts as a hang",
    "token_s": "silence between tokens that counts as a hang",
    "hang_s": "silence of a whole server that counts as a hang",
    "probe_s": "seconds between probes of a server",
    "drain_s": "seconds that streams stay with an unready server",
}
"""The settings of `serve router --set`, which RouterSettings describes."""

app = typer.Typer(
    help="Route text streams.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
)


@app.command(
    epilog=examples(
        "holdfast serve router --servers vllm-headless.serving:8000",
        "holdfast serve router --endpoints-file /endpoints/eds.json",
    )
)
def router(
    servers: Annotated[
        str,
        typer.Option(
            help="Servers as HOST:PORT,...; every address of a name is a server.",
            envvar="HOLDFAST_ROUTER_SERVERS",
        ),
    ] = "",
    endpoints_file: Annotated[
        str,
        typer.Option(
            help="File that `serve endpoints` writes, instead of --servers.",
            envvar="HOLDFAST_ROUTER_ENDPOINTS_FILE",
        ),
    ] = "",
    port: Annotated[
        int, typer.Option(help="Port; 0 takes a free one.", envvar="HOLDFAST_ROUTER_PORT")
    ] = ROUTER_PORT,
    health_path: Annotated[
        str,
        typer.Option(
            help="Path that a ready server answers with 200.",
            envvar="HOLDFAST_ROUTER_HEALTH_PATH",
        ),
    ] = "/health",
    health_port: Annotated[
        int,
        typer.Option(
            help="Port of that path; 0: the port of requests, or the file's.",
            envvar="HOLDFAST_ROUTER_HEALTH_PORT",
        ),
    ] = 0,
    window: Annotated[
        float,
        duration_option("Grace period of the router after SIGTERM.", envvar=ENV_WINDOW_S),
    ] = DEFAULT_WINDOW.pod_s,
    streams: Annotated[
        int,
        typer.Option(help="Maximum number of open requests.", envvar="HOLDFAST_ROUTER_STREAMS"),
    ] = 1000,
    hold: Annotated[
        float,
        duration_option(
            "Time for which a request waits for a ready server.", envvar="HOLDFAST_ROUTER_HOLD_S"
        ),
    ] = 30,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=settings_help(SETTINGS))
    ] = None,
) -> None:
    """Route texts to servers until SIGTERM (exit 143). A stream moves when its server is lost."""
    from holdfast.inference.router.process import serve
    from holdfast.inference.router.settings import RouterSettings
    from holdfast.runtime.shutdown import leave_now

    router_settings = RouterSettings(
        servers=servers,
        endpoints_file=endpoints_file,
        port=port,
        health_path=health_path,
        health_port=health_port,
        window_s=window,
        streams=streams,
        hold_s=hold,
        **read_settings(settings or (), RouterSettings, SETTINGS),
    )
    leave_now(serve(router_settings))
