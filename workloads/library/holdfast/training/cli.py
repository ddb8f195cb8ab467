"""The command `python -m holdfast train run`. Options here, torch only when the command runs."""

import os
import re
import time
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from holdfast.contract.environment import ENV_JOB, ENV_WINDOW_S
from holdfast.contract.errors import InputError
from holdfast.contract.examples import examples
from holdfast.contract.exit_codes import EXIT_BUG
from holdfast.contract.lifecycle import DEFAULT_WINDOW
from holdfast.training.elastic.cli import elastic, ranks

launcher = "holdfast.training.launch"
"""Module whose `launch` runs the ranks; the naive twin puts its own here."""

app = typer.Typer(help="Train the reference model.", no_args_is_help=True, pretty_exceptions_enable=False)


app.command(epilog=examples("python -m holdfast train elastic --nodes 4 --place 0 --checkpoints out/checkpoints"))(
    elastic
)
app.command(epilog=examples("python -m holdfast train ranks --processes 4 -- python train.py"))(ranks)


@app.callback()
def train() -> None:
    """Train the reference model."""


@app.command(
    epilog=examples(
        "python -m holdfast train run --steps 300 --checkpoints out/checkpoints",
        "python -m holdfast train run --run my-run --checkpoints gs://my-bucket/checkpoints --every auto",
    )
)
def run(
    data: Annotated[Path | None, typer.Option(help="Folder of text; default: Python's own sources.")] = None,
    checkpoints: Annotated[str, typer.Option(help="file:///dir, a path, or gs://bucket/prefix.")] = "out/checkpoints",
    run: Annotated[str, typer.Option(help="Name of the run; the same name resumes it.", envvar=ENV_JOB)] = "demo",
    ranks: Annotated[int, typer.Option(help="Processes on this node.")] = 2,
    nodes: Annotated[int, typer.Option(help="Nodes of the job.")] = 1,
    rendezvous: Annotated[str, typer.Option(help="HOST:PORT that all nodes can reach.")] = "",
    steps: Annotated[int, typer.Option(help="Total steps, including those before a resume.")] = 300,
    every: Annotated[str, typer.Option(help='Checkpoint interval: steps, "30s" or "auto".')] = "50",
    keep: Annotated[int, typer.Option(help="Checkpoints to keep.")] = 3,
    batch: Annotated[int, typer.Option(help="Samples per step over all ranks.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of parameters, data order and dropout.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    events: Annotated[Path | None, typer.Option(help="Event file; default: HOLDFAST_EVENTS, else stdout.")] = None,
    window: Annotated[
        float, typer.Option(help="Seconds from SIGTERM to SIGKILL.", envvar=ENV_WINDOW_S)
    ] = DEFAULT_WINDOW.pod_s,
    peer_timeout: Annotated[float, typer.Option(help="Seconds until a silent peer counts as lost.")] = 120.0,
    report_every: Annotated[int, typer.Option(help="Steps between two `window` events.")] = 5,
) -> None:
    """Train until --steps, resuming from the newest checkpoint. Exit: 0 done, 143 preempted, 75 peer lost, 2 input, 70 bug."""
    from holdfast.runtime import gpu, logs
    from holdfast.runtime.phases import Phases, uncollected
    from holdfast.runtime.shutdown import leave_now, of_process

    logs.set_job(run)
    of_process().nothing_at_stake = True  # the first process of a container would not even hear a signal by default
    phases = Phases.of_process()
    phases.lap("interpreter")
    from holdfast.runtime.deadline import node_annotations, planned_end

    # In a child and before torch: a process that has initialised CUDA cannot fork ranks that use it.
    gpu_check = None if device == "cpu" else gpu.start_check()
    deadline = planned_end(os.environ, annotations=node_annotations, now=time.time())
    with uncollected():
        from holdfast.training.config import TrainConfig

        launch = import_module(launcher).launch
    phases.lap("torch import")
    if refused := gpu.exit_code(gpu_check):
        leave_now(refused)
    config = TrainConfig(
        data=data,
        checkpoints=checkpoints,
        run=run,
        ranks=ranks,
        nodes=nodes,
        rendezvous=rendezvous,
        steps=steps,
        every=int(every) if re.fullmatch("[0-9]{1,18}", every) else every,
        keep=keep,
        batch=batch,
        seed=seed,
        device=device,
        deadline=deadline,
        events=events,
        window_s=window,
        peer_timeout_s=peer_timeout,
        report_every=report_every,
    )
    try:
        code = launch(config, phases)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001  # the process's top level: Python's own code 1 would be retried
        logs.error("train", "the launcher failed", cause=error)
        code = EXIT_BUG
    leave_now(code)  # the ranks are gone: taking torch apart would cost the window a second
