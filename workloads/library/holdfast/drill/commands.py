"""Implements `holdfast drill`: lists drills, or runs some of one place and prints verdicts."""

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
from holdfast.drill.remote import Scope, check, make_builder, make_consent
from holdfast.drill.runner import DrillRun, Record
from holdfast.drill.target import Target
from holdfast.drill.verdict import exit_code
from holdfast.support.errors import InputError
from holdfast.support.tables import print_json, print_table

Builder = Callable[[Drill, Path], Target]
"""Makes the target of a drill, given the folder of its run."""
Runner = Callable[[Drill, Target], DrillRun]


def list_all(*, as_json: bool) -> None:
    drills = catalogue.drills().values()
    if as_json:
        print_json("drill-list", drills=[asdict(drill) for drill in drills])
        return
    rows = []
    for drill in drills:
        question = drill.question
        if drill.control:
            question += " (by name only)"
        rows.append((drill.name, drill.place, drill.fault, drill.blast, question))
    print_table(["DRILL", "TARGET", "FAULT", "BLAST", "QUESTION"], rows)


def run_drills(
    names: list[str],
    target: str,
    out: Path,
    scope: Scope,
    *,
    as_json: bool,
) -> int:
    drills = choose_drills(names, target)
    place = drills[0].place
    runner = partial(DrillRun, log=console.print_step)
    build = build_local
    if place is not Place.LOCAL:
        scope = check(place, scope)
        runner = partial(runner, consent=make_consent(scope))
        build = make_builder(place, scope)
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
    """Runs drills one after another; a signal ends the series.

    Returns the exit code and the journals.
    """
    records: list[Record] = []
    signum = 0
    with store.lock_folder(out, "drill"):
        for drill in drills:
            record = _run(drill, out, build, runner, quiet=quiet)
            records.append(record)
            signum = record.signal
            if signum:
                break
    if signum:
        code = 128 + signum
    else:
        code = exit_code([record.verdict for record in records])
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
    folder = store.create_run_folder(out, drill.name)
    target = build(drill, folder)
    record = runner(drill, target).run()
    path = store.write_journal(folder, record.journal())
    if not quiet:
        console.print_verdict(record.journal())
    print(f"  {os.path.relpath(path)}", file=sys.stderr)
    return record


def build_local(drill: Drill, folder: Path) -> Target:
    """Returns the target of a drill on processes of this machine."""
    from holdfast.drill.targets.local_batch import LocalBatch
    from holdfast.drill.targets.local_serving import LocalServing
    from holdfast.drill.targets.local_sharded import LocalSharded
    from holdfast.drill.targets.local_streams import LocalStreams
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
    if drill.work is DrillWork.STREAMS:
        return LocalStreams(
            folder,
            drill.fault,
            engines=catalogue.ENGINES,
            streams=catalogue.STREAMS,
        )
    if drill.work is DrillWork.SHARDED:
        return LocalSharded(
            folder,
            drill.fault,
            nodes=catalogue.NODES,
            copy_every=catalogue.COPY_EVERY,
            commit_every=catalogue.COMMIT_EVERY,
        )
    return LocalTraining(folder, drill.work, drill.fault, save_every=catalogue.SAVE_EVERY)


def choose_drills(names: list[str], target: str) -> list[Drill]:
    """Returns the named drills of one place, or every drill of the place except its controls.

    Raises InputError for an unknown target or name, and for a drill of another place.
    """
    places = {place.value: place for place in Place}
    if target not in places:
        raise InputError(
            "no such target",
            got=target,
            allowed=", ".join(places),
            fix="--target local",
        )
    if not names:
        return catalogue.list_by_place(places[target])
    drills = [catalogue.find(name) for name in names]
    for drill in drills:
        if drill.place.value != target:
            raise InputError(
                "this drill has another target",
                got=f"{drill.name} with --target {target}",
                allowed=f"--target {drill.place.value}",
                fix="drills of one target per run",
            )
    return drills
