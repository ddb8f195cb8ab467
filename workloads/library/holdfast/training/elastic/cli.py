"""The commands `holdfast train elastic` and `ranks`. Options here, torch only when the command runs."""

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
from holdfast.contract.lifecycle import DEFAULT_WINDOW
from holdfast.training.elastic.places import ALONE, DEFAULT_PORT, addresses


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
    data: Annotated[Path | None, typer.Option(help="Folder of text; default: Python's own sources.")] = None,
    checkpoints: Annotated[str, typer.Option(help="URL of checkpoints and gang epochs.")] = "out/checkpoints",
    run: Annotated[str, typer.Option(help="Name of the run; the same name resumes it.", envvar=ENV_JOB)] = "elastic",
    steps: Annotated[int, typer.Option(help="Total steps, including those before a resume.")] = 300,
    every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of parameters, data order and dropout.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    events: Annotated[Path | None, typer.Option(help="Event file; default: HOLDFAST_EVENTS, else stdout.")] = None,
    window: Annotated[
        float, typer.Option(help="Seconds from SIGTERM to SIGKILL.", envvar=ENV_WINDOW_S)
    ] = DEFAULT_WINDOW.pod_s,
    gather: Annotated[float, typer.Option(help="Seconds that a start or a joining node waits for more nodes.")] = 20.0,
    hold: Annotated[float, typer.Option(help="Seconds that a gang with too few nodes waits for more.")] = 60.0,
    silent: Annotated[float, typer.Option(help="Seconds until a silent peer counts as lost.")] = 15.0,
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


def ranks(
    command: Annotated[list[str], typer.Argument(help="Program and arguments, after --.")],
    processes: Annotated[int, typer.Option(help="Number of processes; each gets LOCAL_RANK and LOCAL_WORLD_SIZE.")],
    window: Annotated[
        float, typer.Option(help="Seconds from SIGTERM to SIGKILL.", envvar=ENV_WINDOW_S)
    ] = DEFAULT_WINDOW.pod_s,
) -> None:
    """Start one process of a program per GPU on a node of an elastic gang. Exit: the combined code of the processes."""
    from holdfast.runtime.shutdown import leave_now, of_process
    from holdfast.training.elastic.ranks import run_ranks

    shutdown = of_process()
    shutdown.takes_s = window
    leave_now(run_ranks(command, processes, shutdown, window_s=window))
