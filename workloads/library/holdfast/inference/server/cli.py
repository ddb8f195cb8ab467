"""The commands `python -m holdfast serve VERB`. Bodies import what they need when they run."""

from typing import Annotated

import typer

from holdfast.contract.environment import ENV_WINDOW_S
from holdfast.contract.exit_codes import EXIT_CODES_HELP
from holdfast.contract.lifecycle import DEFAULT_WINDOW
from holdfast.contract.serving import PORT

app = typer.Typer(help="Answer requests online.", epilog=EXIT_CODES_HELP, no_args_is_help=True)


@app.command()
def run(
    predictor: Annotated[str, typer.Option(help="gpt, hf, entropy, or MODULE:FUNCTION of your own.")] = "gpt",
    model: Annotated[str, typer.Option(help="Folder of a Hugging Face model (hf).")] = "",
    checkpoints: Annotated[str, typer.Option(help="Checkpoint URL of the model (gpt).")] = "",
    run_name: Annotated[str, typer.Option("--run", help="The training run whose newest commit is served.")] = "",
    name: Annotated[str, typer.Option(help="The model's name in URLs.")] = "model",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = PORT,
    window: Annotated[
        float, typer.Option(help="Seconds that the pool grants after SIGTERM.", envvar=ENV_WINDOW_S)
    ] = float(DEFAULT_WINDOW.pod_s),
    longest_request: Annotated[
        float, typer.Option(help="Seconds that a request may take; 0: as the window allows.")
    ] = 0.0,
    batch: Annotated[int, typer.Option(help="Items predicted together, at most.")] = 32,
    queue: Annotated[int, typer.Option(help="Requests that may wait.")] = 1024,
    body_bytes: Annotated[int, typer.Option(help="Bytes of a request's body, at most.")] = 8 * 1024 * 1024,
    follow: Annotated[float, typer.Option(help="Seconds between looks for a newer commit; 0: never.")] = 0.0,
) -> None:
    """Serve until SIGTERM (exit 143): not ready at once, accepting until endpoints have moved, then gone."""
    from holdfast.inference.predictor.spec import PredictorSpec
    from holdfast.inference.server.batcher import Limits
    from holdfast.inference.server.process import serve
    from holdfast.inference.server.settings import ServerSettings
    from holdfast.runtime.shutdown import leave_now

    settings = ServerSettings(
        model=name,
        host=host,
        port=port,
        window_s=window,
        longest_request_s=longest_request,
        body_bytes=body_bytes,
        follow_s=follow,
        limits=Limits(batch_items=batch, queue_requests=queue),
    )
    spec = PredictorSpec(name=predictor, model=model, checkpoints=checkpoints, run=run_name)
    # Past every thread: one may wait for a model that hangs.
    leave_now(serve(spec, settings))
