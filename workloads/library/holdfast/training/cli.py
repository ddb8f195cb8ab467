"""The commands `holdfast train run`, `elastic` and `ranks`. Options here, torch only when the command runs."""

import os
import re
import time
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from holdfast.contract.environment import (
    ENV_COMPLETION_INDEX,
    ENV_GANG_ADDRESS,
    ENV_GANG_MIN_NODES,
    ENV_GANG_NODES,
    ENV_GANG_PORT,
    ENV_JOB,
    ENV_LOCAL_RANK,
    ENV_LOCAL_WORLD_SIZE,
    ENV_WINDOW_S,
)
from holdfast.contract.errors import InputError
from holdfast.contract.examples import examples
from holdfast.contract.exit_codes import EXIT_BUG
from holdfast.contract.lifecycle import DEFAULT_WINDOW
from holdfast.training.elastic.places import ALONE, DEFAULT_PORT, addresses

launcher = "holdfast.training.launch"
"""Module whose `launch` runs the ranks; the naive twin puts its own here."""

app = typer.Typer(help="Train the reference model.", no_args_is_help=True, pretty_exceptions_enable=False)

Data = Annotated[Path | None, typer.Option(help="Folder of text; default: Python's own sources.")]
Checkpoints = Annotated[str, typer.Option(help="file:///dir, a path, or gs://bucket/prefix.")]
Run = Annotated[str, typer.Option(help="Name of the run; the same name resumes it.", envvar=ENV_JOB)]
Steps = Annotated[int, typer.Option(help="Total steps, including those before a resume.")]
Seed = Annotated[int, typer.Option(help="Seed of parameters, data order and dropout.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Events = Annotated[Path | None, typer.Option(help="Event file; default: HOLDFAST_EVENTS, else stdout.")]
Window = Annotated[float, typer.Option(help="Seconds from SIGTERM to SIGKILL.", envvar=ENV_WINDOW_S)]


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
    data: Data = None,
    checkpoints: Checkpoints = "out/checkpoints",
    run: Run = "demo",
    ranks: Annotated[int, typer.Option(help="Processes on this node.")] = 2,
    nodes: Annotated[int, typer.Option(help="Nodes of the job.")] = 1,
    rendezvous: Annotated[str, typer.Option(help="HOST:PORT that all nodes can reach.")] = "",
    steps: Steps = 300,
    every: Annotated[str, typer.Option(help='Checkpoint interval: steps, "30s" or "auto".')] = "50",
    keep: Annotated[int, typer.Option(help="Checkpoints to keep.")] = 3,
    batch: Annotated[int, typer.Option(help="Samples per step over all ranks.")] = 16,
    seed: Seed = 0,
    device: Device = "auto",
    events: Events = None,
    window: Window = DEFAULT_WINDOW.pod_s,
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


@app.command(epilog=examples("python -m holdfast train elastic --nodes 4 --place 0 --checkpoints out/checkpoints"))
def elastic(
    nodes: Annotated[int, typer.Option(help="Maximum number of nodes of the gang.", envvar=ENV_GANG_NODES)] = 1,
    place: Annotated[int, typer.Option(help="Index of this node.", envvar=ENV_COMPLETION_INDEX)] = 0,
    address: Annotated[str, typer.Option(help="Host of a node, with {place} in it.", envvar=ENV_GANG_ADDRESS)] = ALONE,
    port: Annotated[
        int, typer.Option(help="Port of a node's first process; each uses two.", envvar=ENV_GANG_PORT)
    ] = DEFAULT_PORT,
    min_nodes: Annotated[
        int,
        typer.Option(
            help="Minimum number of nodes; with fewer, the gang stops after --hold.", envvar=ENV_GANG_MIN_NODES
        ),
    ] = 1,
    ranks: Annotated[int, typer.Option(help="Processes of a node.", envvar=ENV_LOCAL_WORLD_SIZE)] = 1,
    rank: Annotated[int, typer.Option(help="Index of this process on the node.", envvar=ENV_LOCAL_RANK)] = 0,
    shards: Annotated[int, typer.Option(help="Logical shards of a step; 0: six for each process.")] = 0,
    exact: Annotated[
        bool, typer.Option(help="Bit-exact results for any sequence of gang sizes; doubles the network traffic.")
    ] = False,
    data: Data = None,
    checkpoints: Checkpoints = "out/checkpoints",
    run: Run = "elastic",
    steps: Steps = 300,
    every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 100,
    seed: Seed = 0,
    device: Device = "auto",
    events: Events = None,
    window: Window = DEFAULT_WINDOW.pod_s,
    gather: Annotated[float, typer.Option(help="Seconds that a start or a joining node waits for more nodes.")] = 20.0,
    hold: Annotated[float, typer.Option(help="Seconds that a gang with too few nodes waits for more.")] = 60.0,
    silent: Annotated[float, typer.Option(help="Seconds until a node that does not answer counts as lost.")] = 3.0,
) -> None:
    """Train on a gang that continues without lost nodes. Exit: 0 done, 143 preempted, 75 too few nodes, 2 input, 70 bug."""
    from holdfast.runtime import logs
    from holdfast.runtime.shutdown import leave_now, of_process

    logs.set_job(run)
    of_process().nothing_at_stake = True  # a start that has not begun its work leaves at the first notice
    from holdfast.training.elastic.trainer import ElasticConfig, train_elastic

    config = ElasticConfig(
        checkpoints=checkpoints,
        nodes=addresses(address, port, nodes, ranks),
        index=place * ranks + rank,
        ranks_per_node=ranks,
        run=run,
        min_nodes=min_nodes,
        steps=steps,
        shards=shards,
        exact=exact,
        every=every,
        seed=seed,
        device=device,
        data=data,
        events=events,
        window_s=window,
        gather_s=gather,
        hold_s=hold,
        silent_s=silent,
    )
    of_process().begin()
    leave_now(train_elastic(config))


@app.command(epilog=examples("python -m holdfast train ranks --processes 4 -- python train.py"))
def ranks(
    command: Annotated[list[str], typer.Argument(help="Program and arguments, after --.")],
    processes: Annotated[int, typer.Option(help="Number of processes; each gets LOCAL_RANK and LOCAL_WORLD_SIZE.")],
    window: Window = DEFAULT_WINDOW.pod_s,
) -> None:
    """Start one process of a program per GPU on a node of an elastic gang. Exit: the combined code of the processes."""
    from holdfast.runtime.shutdown import leave_now, of_process
    from holdfast.training.elastic.ranks import run_ranks

    shutdown = of_process()
    shutdown.takes_s = window
    leave_now(run_ranks(command, processes, shutdown, window_s=window))
