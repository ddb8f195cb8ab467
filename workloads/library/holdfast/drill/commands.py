"""Bodies of `holdfast drill list|show|run`."""

import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from holdfast.contract.errors import InputError
from holdfast.drill import console, store
from holdfast.drill.alerting import fires
from holdfast.drill.catalogue import drills as known_drills
from holdfast.drill.catalogue import find, of
from holdfast.drill.plan import Drill, Place
from holdfast.drill.remote import Where, builder, checked, consent, on_each_pool
from holdfast.drill.runner import DrillRunner
from holdfast.drill.suite import Builder, DrillSuite, local


def list_all(out: Path, *, as_json: bool) -> None:
    known = known_drills()
    last = {name: found["verdict"] for name in known if (found := store.last(out, name))}
    if as_json:
        rows = [asdict(drill) | {"last": last.get(drill.name)} for drill in known.values()]
        print(json.dumps({"schema": "holdfast.drill-list/1", "drills": rows}))
    else:
        console.drills(console.stdout(), list(known.values()), last)


def show_one(name: str, out: Path, *, as_json: bool) -> None:
    drill, last = find(name), store.last(out, name)
    if as_json:
        print(json.dumps({"schema": "holdfast.drill-show/1", "drill": asdict(drill), "last": last}))
        return
    console.plan(console.stdout(), drill)
    if last:
        print(f"\nlast run, {last['start']}")
        console.verdict(console.stdout(), last)


def run_drills(names: list[str], target: str, out: Path, where: Where, *, repeat: int = 1, as_json: bool) -> int:
    drills = chosen(names, target)
    place = drills[0].place
    if place is Place.NODE:
        raise InputError(
            "only the tests start real kubelets",
            got="--target node",
            allowed="local, cluster, gke",
            fix="make drill-node",
        )
    log = partial(console.moment, console.stderr())
    base = DrillRunner(log=log, alert=fires)
    build: Builder = local
    if place is not Place.LOCAL:
        where = checked(place, where)
        drills = on_each_pool(drills, where) if where.each_pool else drills
        base, build = replace(base, consent=consent(where)), builder(place, where)
    suite = DrillSuite(out=out, build=build, runner=lambda last: replace(base, last=last), quiet=as_json)
    code, result = suite.run(drills, repeat)
    if as_json:
        print(json.dumps(result, default=str))
    return code


def chosen(names: list[str], target: str) -> list[Drill]:
    """The named ones, all of one place; or every drill of the place but its controls."""
    places = {place.value: place for place in Place}
    if target not in places:
        raise InputError("no such target", got=target, allowed=", ".join(places), fix="--target local")
    if not names:
        return of(places[target])
    drills = [find(name) for name in names]
    elsewhere = [drill for drill in drills if drill.place.value != target]
    if elsewhere:
        raise InputError(
            "this drill has another target",
            got=f"{elsewhere[0].name} with --target {target}",
            allowed=f"--target {elsewhere[0].place.value}",
            fix="drills of one target per run",
        )
    return drills
