"""Commands `holdfast train run`, `elastic` and `ranks`, which import torch only when they run."""

import os
import re
import time
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from holdfast.support.command_line import CommandGroup
from holdfast.support.duration_option import duration_option
from holdfast.support.errors import InputError
from holdfast.support.examples import examples
from holdfast.support.values import read_settings, settings_help
from holdfast.vocabulary.environment import (
    ENV_CHECKPOINTS,
    ENV_COMPLETION_INDEX,
    ENV_GANG_MIN_NODES,
    ENV_GANG_NODES,
    ENV_JOB,
    ENV_LOCAL_WORLD_SIZE,
    ENV_RUN,
    ENV_WINDOW_S,
)
from holdfast.vocabulary.exit_codes import EXIT_BUG
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW

launcher = "holdfast.training.trainer.launch"
"""Module whose `launch` runs the ranks; the drill's naive trainer replaces it."""

SETTINGS = {
    "keep": "checkpoints kept",
    "batch": "samples of a step over all ranks",
    "seed": "seed of weights and data",
    "peer_timeout_s": "seconds to wait for a silent rank",
    "report_every": "steps between two event lines",
}
ELASTIC_SETTINGS = {
    "shards": "parts of a step, shared out to the nodes",
    "exact": "true: bit-identical weights for any number of nodes",
    "seed": "seed of weights and data",
    "gather_s": "seconds to wait for all nodes at the start",
    "hold_s": "seconds to wait with too few nodes",
    "silent_s": (
        "seconds after which a node that takes no connection is lost; five times as long if only"
        " its process is silent"
    ),
}

app = typer.Typer(
    cls=CommandGroup,
    help="Train the reference model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Data = Annotated[Path | None, typer.Option(help="Folder of text; default: Python's own sources.")]
Checkpoints = Annotated[str, typer.Option(help="file:///dir, a path, or gs://bucket/prefix.")]
Run = Annotated[
    str, typer.Option(help="Name of the run; the same name resumes it.", envvar=ENV_JOB)
]
Steps = Annotated[int, typer.Option(help="Total steps, including those before a resume.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Events = Annotated[
    Path | None,
    typer.Option(
        "--events-file", help="File for event lines; default: HOLDFAST_EVENTS, else stdout."
    ),
]
Window = Annotated[float, duration_option("Time from SIGTERM to SIGKILL.", envvar=ENV_WINDOW_S)]


@app.command(
    epilog=examples(
        "holdfast train run --steps 300 --checkpoints out/checkpoints",
        "holdfast train run --run my-run --checkpoints gs://my-bucket/checkpoints --every auto",
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
    device: Device = "auto",
    events: Events = None,
    window: Window = DEFAULT_WINDOW.pod_s,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help=settings_help(SETTINGS),
        ),
    ] = None,
) -> None:
    """Train until --steps, resuming from the newest checkpoint. Exit: 0 done, 143 preempted, 75
    peer lost, 2 input, 70 bug.
    """
    from holdfast.runtime import gpu, logs
    from holdfast.runtime.deadline import fetch_node_annotations, find_planned_end
    from holdfast.runtime.phases import Phases, pause_gc
    from holdfast.runtime.shutdown import leave_now, of_process

    logs.set_job(run)
    # The kernel drops signals to the first process of a container unless it handles them.
    of_process().nothing_at_stake = True
    phases = Phases.of_process()
    phases.lap("interpreter")
    # The check runs in a child and before torch: a process that has initialized CUDA cannot fork
    # ranks that use it.
    gpu_check = None if device == "cpu" else gpu.start_check()
    deadline = find_planned_end(
        os.environ,
        annotations=fetch_node_annotations,
        now=time.time(),
    )
    with pause_gc():
        from holdfast.training.trainer.config import TrainConfig

        advanced_settings = read_settings(settings or (), TrainConfig, SETTINGS)
        launch = import_module(launcher).launch
    phases.lap("torch import")
    gpu_code = gpu.exit_code(gpu_check)
    if gpu_code:
        leave_now(gpu_code)
    config = TrainConfig(
        data=data,
        checkpoints=checkpoints,
        run=run,
        ranks=ranks,
        nodes=nodes,
        rendezvous=rendezvous,
        steps=steps,
        every=int(every) if re.fullmatch("[0-9]{1,18}", every) else every,
        device=device,
        deadline=deadline,
        events=events,
        window_s=window,
        **advanced_settings,
    )
    try:
        code = launch(config, phases)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001  # the process's top level: Python's own code 1 would be retried
        logs.error("train", "the launcher failed", cause=error)
        code = EXIT_BUG
    leave_now(code)  # tearing torch down would cost the window a second


@app.command(
    epilog=examples("holdfast train elastic --nodes 4 --place 0 --checkpoints out/checkpoints")
)
def elastic(
    nodes: Annotated[
        int, typer.Option(help="Maximum number of nodes of the gang.", envvar=ENV_GANG_NODES)
    ] = 1,
    place: Annotated[
        int, typer.Option(help="Index of this node.", envvar=ENV_COMPLETION_INDEX)
    ] = 0,
    min_nodes: Annotated[
        int,
        typer.Option(
            help="Minimum number of nodes; with fewer, the gang stops after hold_s.",
            envvar=ENV_GANG_MIN_NODES,
        ),
    ] = 1,
    data: Data = None,
    checkpoints: Checkpoints = "out/checkpoints",
    run: Run = "elastic",
    steps: Steps = 300,
    every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 100,
    device: Device = "auto",
    events: Events = None,
    window: Window = DEFAULT_WINDOW.pod_s,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help=settings_help(ELASTIC_SETTINGS),
        ),
    ] = None,
) -> None:
    """Train on a gang that continues without lost nodes. Exit: 0 done, 143 preempted, 75 too few
    nodes, 2 input, 70 bug.
    """
    from holdfast.runtime import logs
    from holdfast.runtime.phases import pause_gc
    from holdfast.runtime.shutdown import leave_now, of_process

    logs.set_job(run)
    # A process that has not started its work exits at the first notice.
    of_process().nothing_at_stake = True
    with pause_gc():
        from holdfast.training.elastic.trainer import ElasticConfig, train_elastic
        from holdfast.training.gang.member_addresses import read_places

    variables = {
        **os.environ,
        ENV_GANG_NODES: str(nodes),
        ENV_COMPLETION_INDEX: str(place),
        ENV_GANG_MIN_NODES: str(min_nodes),
    }
    config = ElasticConfig(
        checkpoints=checkpoints,
        places=read_places(variables),
        run=run,
        steps=steps,
        every=every,
        device=device,
        data=data,
        events=events,
        window_s=window,
        **read_settings(settings or (), ElasticConfig, ELASTIC_SETTINGS),
    )
    of_process().begin()
    leave_now(train_elastic(config))


@app.command(
    hidden=True,  # job files start it
    epilog=examples(
        "holdfast train ranks --processes 4 -- python train.py",
        "holdfast train ranks --processes 4 --sharded --nodes 4 --place 0 -- python train.py",
    ),
)
def ranks(
    command: Annotated[list[str], typer.Argument(help="Program and arguments, after --.")],
    processes: Annotated[
        int | None,
        typer.Option(
            help="Number of processes; each gets LOCAL_RANK and LOCAL_WORLD_SIZE. Default:"
            " PET_NPROC_PER_NODE."
        ),
    ] = None,
    torchrun: Annotated[
        bool,
        typer.Option(
            "--torchrun",
            help="Also give each process RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, from the"
            " variables PET_* of torchrun.",
        ),
    ] = False,
    sharded: Annotated[
        bool,
        typer.Option(
            "--sharded",
            help="The state is sharded over nodes: wait for a lost node, then continue.",
        ),
    ] = False,
    checkpoints: Annotated[
        str, typer.Option(help="URL to which the sharded program saves.", envvar=ENV_CHECKPOINTS)
    ] = "out/checkpoints",
    run: Annotated[str, typer.Option(help="Name of the sharded run.", envvar=ENV_RUN)] = "sharded",
    nodes: Annotated[
        int, typer.Option(help="Number of nodes of the sharded gang.", envvar=ENV_GANG_NODES)
    ] = 1,
    place: Annotated[
        int, typer.Option(help="Index of this node.", envvar=ENV_COMPLETION_INDEX)
    ] = 0,
    min_nodes: Annotated[
        int,
        typer.Option(
            help="Fewest nodes with which a sharded gang continues; 0: it waits for all of them.",
        ),
    ] = 0,
    copies: Annotated[
        int | None,
        typer.Option(
            help="Copies of each shard in another node's memory: 0 or 1; 1 needs several nodes."
        ),
    ] = None,
    copies_folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder on a local disk for copies, which then need no memory: two shards of"
            " memory for each process in place of five."
        ),
    ] = None,
    wait: Annotated[
        float, duration_option("Time to wait for a lost node.", show_default="30m")
    ] = 1800.0,
    window: Window = DEFAULT_WINDOW.pod_s,
) -> None:
    """Start one process of a program per GPU on a node of a gang. Exit: the combined code of the
    processes; 75 if a lost node did not come back.
    """
    from holdfast.runtime import logs
    from holdfast.runtime.phases import pause_gc
    from holdfast.runtime.shutdown import leave_now, of_process

    shutdown = of_process()
    shutdown.takes_s = window
    with pause_gc():
        from holdfast.training.elastic.launcher import run_ranks
        from holdfast.training.gang.fixed_group import read_group, read_processes
        from holdfast.training.gang.member_addresses import read_places
        from holdfast.training.sharded.launcher import run_sharded
        from holdfast.training.sharded.settings import ShardedNode

    count = read_processes(os.environ) if processes is None else processes
    if torchrun and sharded:
        raise InputError(
            "--torchrun and --sharded",
            got="both",
            allowed="one: a sharded gang numbers its ranks itself",
            fix="leave --torchrun out",
        )
    if not sharded:
        group = read_group(os.environ) if torchrun else None
        leave_now(run_ranks(command, count, shutdown, window_s=window, group=group))
    logs.set_job(run)
    variables = {
        **os.environ,
        ENV_GANG_NODES: str(nodes),
        ENV_COMPLETION_INDEX: str(place),
        ENV_LOCAL_WORLD_SIZE: "1",
    }
    pod = read_places(variables)
    node = ShardedNode(
        command=command,
        checkpoints=checkpoints,
        run=run,
        nodes=pod.nodes,
        place=pod.index,
        processes=count,
        min_nodes=min_nodes,
        copies=min(1, nodes - 1) if copies is None else copies,
        copies_folder=copies_folder,
        wait_s=wait,
        window_s=window,
    )
    leave_now(run_sharded(node, shutdown))
