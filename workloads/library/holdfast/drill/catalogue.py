"""Every drill, as data: those below, and those that other distributions add by the entry points `holdfast.drills`."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, cast

from holdfast.contract.errors import InputError
from holdfast.contract.exit_codes import EXIT_PREEMPTED
from holdfast.contract.extensions import extensions, refused
from holdfast.contract.lifecycle import DEFAULT_WINDOW, WINDOW_MARGIN_S
from holdfast.drill.plan import Blast, Drill, DrillWork, Fault, Place, bound, promised

GROUP = "holdfast.drills"
"""Of entry points: each is a callable without arguments that returns drills."""
SAVE_EVERY = 20  # steps between checkpoints of the local trainer
NODES, COPY_EVERY, COMMIT_EVERY = 2, 10, 50  # of the local sharded gang; steps
WORKERS = 3
ITEMS = 3_000
SERVERS = 3
REQUESTS_PER_S = 50.0

_IN_ORDER = f"left in order: exit_code = {EXIT_PREEMPTED}"
_NO_CRASH = "nothing crashed: crashes = 0"
_NOT_FINISHED = "not taken for finished: false_completions = 0"
_RECOVERED, _REPLACED = (f"{what} in time: recovered_s <= 90 s" for what in ("recovered", "replaced"))
_LOST_STEPS = f"lost work within one interval: lost_steps <= {SAVE_EVERY} steps"
_RESUMES = (
    _RECOVERED,
    _LOST_STEPS,
    "no committed step done twice: committed_steps_redone = 0 steps",
    "no damaged checkpoint met: checkpoints_skipped = 0",
    _NOT_FINISHED,
    _NO_CRASH,
)
_IN_WINDOW = f"left inside its window: left_s <= {DEFAULT_WINDOW.pod_s - WINDOW_MARGIN_S + 1} s"
_TRAINER_NOTICE = Drill(
    name="trainer-notice",
    question="Does the trainer use its window and resume at its newest commit?",
    place=Place.LOCAL,
    work=DrillWork.TRAINER,
    steady=bound("commits >= 1"),
    steady_s=120,
    blast=Blast(of="trainer pod"),
    fault=Fault.NOTICE,
    stop_when=bound("gave_up >= 1"),
    recovery_s=120,
    objectives=promised(_IN_ORDER, _IN_WINDOW, *_RESUMES),
    rollback="kill every process of the drill, remove its checkpoints",
)
_POWER_LOSS = replace(
    _TRAINER_NOTICE,
    name="trainer-power-loss",
    question="Does the trainer come back from a machine that vanished?",
    fault=Fault.POWER_LOSS,
    objectives=promised(*_RESUMES),
)
_SHARDED_POWER_LOSS = replace(
    _POWER_LOSS,
    name="sharded-power-loss",
    question="Does a sharded gang continue from memory when a node vanishes?",
    work=DrillWork.SHARDED,
    # A copy that is newer than the bucket is complete.
    steady=bound(f"uncommitted_steps >= {2 * COPY_EVERY}"),
    steady_s=200,  # nodes of three processes each, of which two import torch
    blast=Blast(of="node of the gang", percent=50),
    stop_when=bound("others_ended >= 1"),
    objectives=promised(
        _RECOVERED,
        f"lost work within two copies: lost_steps <= {2 * COPY_EVERY} steps",
        "no shard read from the bucket: bucket_restores = 0",
        "the other nodes stayed: others_ended = 0",
    ),
)
_NAIVE = replace(
    _TRAINER_NOTICE,
    name="naive-notice",
    question="Control: what does the same eviction do to what tutorials teach?",
    work=DrillWork.NAIVE,
    control=True,
)
_NONE_FAILED = "no request failed: requests_failed = 0"
_COUNTED = (
    "no retry of the proxy was needed: proxy_retries = 0",
    "clients, proxy and servers count the same: counts_differ = 0",
)
_SERVE_NOTICE = replace(
    _TRAINER_NOTICE,
    name="serve-notice",
    question="Does a server that gets its notice drop any request?",
    work=DrillWork.SERVER,
    steady=bound("answered >= 100"),
    steady_s=60,
    blast=Blast(of="server pod", percent=50),
    stop_when=bound("crashes >= 1"),
    objectives=promised(_NONE_FAILED, *_COUNTED, _IN_ORDER, _REPLACED, _NO_CRASH),
    rollback="kill every process of the drill, its proxy included",
)
_SERVE_POWER_LOSS = replace(
    _SERVE_NOTICE,
    name="serve-power-loss",
    question="Does a server that vanishes without notice cost a request?",
    fault=Fault.POWER_LOSS,
    objectives=promised(_NONE_FAILED, _REPLACED, _NO_CRASH),
)
_STORED_ONCE = (
    "no item lost: items_lost = 0",
    "nothing duplicated: items_duplicated = 0",
    "no item given up: dead_letters = 0",
)
_BATCH_POWER_LOSS = replace(
    _SERVE_POWER_LOSS,
    name="batch-power-loss",
    question="Is every item stored once when a worker vanishes in the middle?",
    work=DrillWork.BATCH,
    steady=bound(f"stored_items >= {ITEMS // 20}"),
    steady_s=60,
    blast=Blast(of="batch worker", percent=50),
    objectives=promised(_RECOVERED, *_STORED_ONCE, _NO_CRASH),
    rollback="kill every process of the drill, its database included, and remove its data",
)
_IN_TIME = "recovered in time: recovered_s <= 120 s"
_COMES_BACK = (
    "no failure charged: failures_charged = 0",
    "nothing duplicated: pods_doubled = 0",
    _NOT_FINISHED,
    "nothing crashed: pods_crashed = 0",
    "only the named pods were hit: pods_outside_blast = 0",
)
_EVICT = Drill(
    name="cluster-evict",
    question="Is a pod that the Eviction API takes replaced, and its Job not charged?",
    place=Place.CLUSTER,
    work=DrillWork.NAMED,
    steady=bound("pods_missing = 0"),
    steady_s=60,
    blast=Blast(of="pod", percent=50),
    fault=Fault.EVICT,
    stop_when=bound("pods_outside_blast >= 1"),
    recovery_s=180,
    objectives=promised(_IN_TIME, *_COMES_BACK),
    rollback="nothing to put back: the Job replaces its pod",
)
_LONE_NODE = replace(
    _EVICT,
    name="cluster-lone-node",
    question="Does one lost Spot node cost no failure?",
    fault=Fault.PREEMPT,
    blast=Blast(of="Spot node", percent=30),
    objectives=promised(_IN_TIME, *_COMES_BACK),
    rollback="open again the nodes that were closed",
)
_STORM = replace(
    _LONE_NODE,
    name="cluster-storm",
    question="Does the work survive a storm over 30 % of its Spot nodes?",
    blast=Blast(of="Spot nodes", most=100, percent=30),
    objectives=promised(_IN_TIME, *_COMES_BACK),
)
_GKE = replace(
    _EVICT,
    name="gke-maintenance",
    question="Does the work survive a preemption that Compute Engine itself simulates?",
    place=Place.GKE,
    fault=Fault.PREEMPT,
    blast=Blast(of="Spot VM", percent=50),
    recovery_s=900,
    objectives=promised("recovered in time: recovered_s <= 600 s", *_COMES_BACK),
    rollback="nothing to put back: the pool replaces its machine",
    usd=1,
)
BUILT_IN = (
    _SERVE_NOTICE, _SERVE_POWER_LOSS, _TRAINER_NOTICE, _POWER_LOSS, _BATCH_POWER_LOSS, _NAIVE, _SHARDED_POWER_LOSS,
    _EVICT, _LONE_NODE, _STORM, _GKE,
)  # fmt: skip


def drills() -> dict[str, Drill]:
    """Built-in ones first. InputError names the distribution that adds what is none."""
    found = {drill.name: drill for drill in BUILT_IN}
    for distribution, name, make in extensions(GROUP):
        for drill in _made(distribution, name, make):
            if drill.name in found:
                raise refused(distribution, f"{GROUP}: {name}", f"a second drill {drill.name}", "names that are free")
            found[drill.name] = drill
    return found


def _made(distribution: str, name: str, make: object) -> list[Drill]:
    what, allowed = f"{GROUP}: {name}", "a callable that returns drills"
    try:
        made = list(cast(Callable[[], Iterable[Any]], make)())
    except Exception as error:  # foreign code runs here, and may raise anything
        raise refused(distribution, what, f"{type(error).__name__}: {error}", allowed) from error
    if wrong := [each for each in made if not isinstance(each, Drill)]:
        raise refused(distribution, what, repr(wrong[0]), allowed)
    return made


def find(name: str) -> Drill:
    known = drills()
    if name in known:
        return known[name]
    near = get_close_matches(name, known, n=1)
    fix = f"did you mean {near[0]}?" if near else "`holdfast drill --list`"
    raise InputError("no such drill", got=name, allowed=", ".join(known), fix=fix)


def of(place: Place) -> list[Drill]:
    """What `--target PLACE` runs: all but the controls."""
    return [drill for drill in drills().values() if drill.place is place and not drill.control]
