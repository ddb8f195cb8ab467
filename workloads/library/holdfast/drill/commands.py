"""The body of `holdfast drill`."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.drill import catalogue, console, store
from holdfast.drill.plan import Drill, DrillWork, Place
from holdfast.drill.remote import Where, builder, checked, consent
from holdfast.drill.runner import DrillRun, Record
from holdfast.drill.target import Target
from holdfast.drill.verdict import exit_code
from holdfast.support.errors import InputError
from holdfast.support.tables import print_json, print_table

Builder = Callable[[Drill, Path], Target]
"""Drill and folder of its run -> the place where it runs."""
Runner = Callable[[Drill, Target], DrillRun]


def list_all(*, as_json: bool) -> None:
    drills = catalogue.drills().values()
    if as_json:
        print_json("drill-list", drills=[asdict(drill) for drill in drills])
        return
    shown = []
    for d in drills:
        shown.append(
            (
                d.name,
                d.place,
                d.fault,
                d.blast,
                d.question + (" (by name only)" if d.control else ""),
            )
        )
    print_table(["DRILL", "TARGET", "FAULT", "BLAST", "QUESTION"], shown)


def run_drills(
    names: list[str],
    target: str,
    out: Path,
    where: Where,
    *,
    as_json: bool,
) -> int:
    drills = chosen(names, target)
    place = drills[0].place
    runner = partial(DrillRun, log=console.moment)
    build = local
    if place is not Place.LOCAL:
        where = checked(place, where)
        runner = partial(runner, consent=consent(where))
        build = builder(place, where)
    code, journals = run_all(drills, out, build, runner, quiet=as_json)
    if as_json:
        print(json.dumps({"schema": "holdfast.drills/1", "drills": journals}, default=str))
    return code


def run_all(
    drills: Sequence[Drill],
    out: Path,
    build: Builder,
    runner: Runner,
    *,
    quiet: bool = False,
) -> tuple[int, list[dict[str, Any]]]:
    """Exit code, and the journals. A signal ends it all."""
    records: list[Record] = []
    with store.alone(out, "drill"):
        for drill in drills:
            records.append(_run(drill, out, build, runner, quiet=quiet))
            if records[-1].signal:
                break
    if records and records[-1].signal:
        code = 128 + records[-1].signal
    else:
        code = exit_code([r.verdict for r in records])
    return code, [record.journal() for record in records]


def _run(
    drill: Drill,
    out: Path,
    build: Builder,
    runner: Runner,
    *,
    quiet: bool,
) -> Record:
    print(f"drill {drill.name}: {drill.question}", file=sys.stderr)
    folder = store.fresh(out, drill.name)
    record = runner(drill, build(drill, folder)).run()
    path = store.write(folder, record.journal())
    if not quiet:
        console.verdict(record.journal())
    print(f"  {os.path.relpath(path)}", file=sys.stderr)
    return record


def local(drill: Drill, folder: Path) -> Target:
    """The place `local`: processes of this machine."""
    from holdfast.drill.targets.local_batch import LocalBatch
    from holdfast.drill.targets.local_serving import LocalServing
    from holdfast.drill.targets.local_sharded import LocalSharded
    from holdfast.drill.targets.local_training import LocalTraining

    if drill.work is DrillWork.BATCH:
        return LocalBatch(
            folder,
            drill.fault,
            workers=catalogue.WORKERS,
            items=catalogue.ITEMS,
        )
    if drill.work is DrillWork.SERVER:
        return LocalServing(
            folder,
            drill.fault,
            replicas=catalogue.SERVERS,
            per_s=catalogue.REQUESTS_PER_S,
        )
    if drill.work is DrillWork.SHARDED:
        every = {"copy_every": catalogue.COPY_EVERY, "commit_every": catalogue.COMMIT_EVERY}
        return LocalSharded(folder, drill.fault, nodes=catalogue.NODES, **every)
    return LocalTraining(folder, drill.work, drill.fault, save_every=catalogue.SAVE_EVERY)


def chosen(names: list[str], target: str) -> list[Drill]:
    """The named ones, all of one place; or every drill of the place but its controls."""
    places = {place.value: place for place in Place}
    if target not in places:
        raise InputError(
            "no such target",
            got=target,
            allowed=", ".join(places),
            fix="--target local",
        )
    if not names:
        return catalogue.of(places[target])
    drills = [catalogue.find(name) for name in names]
    elsewhere = [drill for drill in drills if drill.place.value != target]
    if elsewhere:
        raise InputError(
            "this drill has another target",
            got=f"{elsewhere[0].name} with --target {target}",
            allowed=f"--target {elsewhere[0].place.value}",
            fix="drills of one target per run",
        )
    return drills
