"""Every drill, as data. A fork adds its own below; `drill list` shows them, `drill run` runs them."""

from dataclasses import replace
from difflib import get_close_matches

from holdfast.contract.errors import InputError
from holdfast.contract.exit_codes import EXIT_PREEMPTED
from holdfast.contract.lifecycle import DEFAULT_WINDOW, WINDOW_MARGIN_S
from holdfast.drill.plan import (
    Blast,
    Bound,
    Budget,
    Drill,
    Fault,
    Objective,
    Operator,
    Place,
    SteadyState,
    Work,
)

SAVE_EVERY = 20  # steps between checkpoints of the local trainer
WORKERS = 3
ITEMS = 3_000
SERVERS = 3
REQUESTS_PER_S = 50.0
BURST = "HoldfastSpotPreemptionBurst"


def at_most(metric: str, value: float, unit: str = "") -> Bound:
    return Bound(metric=metric, operator=Operator.AT_MOST, value=value, unit=unit)


def at_least(metric: str, value: float, unit: str = "") -> Bound:
    return Bound(metric=metric, operator=Operator.AT_LEAST, value=value, unit=unit)


def equal(metric: str, value: float, unit: str = "") -> Bound:
    return Bound(metric=metric, operator=Operator.EQUAL, value=value, unit=unit)


def _quiet(alert: str) -> Objective:
    return Objective(promise="a lone eviction pages nobody", bound=equal(f"fires:{alert}", 0), essential=False)


_NO_CRASH = Objective(promise="nothing crashed", bound=equal("crashes", 0))
_RESUMES = (
    Objective(promise="recovered in time", bound=at_most("recovered_s", 90, "s")),
    Objective(promise="lost work within one interval", bound=at_most("lost_steps", SAVE_EVERY, "steps")),
    Objective(promise="no committed step done twice", bound=equal("committed_steps_redone", 0, "steps")),
    Objective(promise="no damaged checkpoint met", bound=equal("checkpoints_skipped", 0)),
    Objective(promise="not taken for finished", bound=equal("false_completions", 0)),
    _NO_CRASH,
)
_TRAINER_NOTICE = Drill(
    name="trainer-notice",
    question="Does the trainer use its window and resume at its newest commit?",
    place=Place.LOCAL,
    work=Work.TRAINER,
    steady_state=SteadyState(bound=at_least("commits", 1), within_s=120),
    blast=Blast(of="trainer pod"),
    fault=Fault.NOTICE,
    stop_when=at_least("gave_up", 1),
    recovery_s=120,
    objectives=(
        Objective(promise="left in order", bound=equal("exit_code", EXIT_PREEMPTED)),
        Objective(
            promise="left inside its window", bound=at_most("left_s", DEFAULT_WINDOW.pod_s - WINDOW_MARGIN_S + 1, "s")
        ),
        *_RESUMES,
        _quiet(BURST),
    ),
    rollback="kill every process of the drill, remove its checkpoints",
    budget=Budget(minutes=6),
)
_SERVE_NOTICE = Drill(
    name="serve-notice",
    question="Does a server that is taken away with notice drop any request?",
    place=Place.LOCAL,
    work=Work.SERVER,
    steady_state=SteadyState(bound=at_least("answered", 100), within_s=60),
    blast=Blast(of="server pod", percent=50),
    fault=Fault.NOTICE,
    stop_when=at_least("crashes", 1),
    recovery_s=120,
    objectives=(
        Objective(promise="no request failed", bound=equal("requests_failed", 0)),
        Objective(promise="no retry of the proxy was needed", bound=equal("proxy_retries", 0)),
        Objective(promise="clients, proxy and servers count the same", bound=equal("counts_differ", 0)),
        Objective(promise="left in order", bound=equal("exit_code", EXIT_PREEMPTED)),
        Objective(promise="replaced in time", bound=at_most("recovered_s", 90, "s")),
        _NO_CRASH,
        _quiet(BURST),
    ),
    rollback="kill every process of the drill, its proxy included",
    budget=Budget(minutes=5),
)
_LOCAL = (
    _SERVE_NOTICE,
    replace(
        _SERVE_NOTICE,
        name="serve-power-loss",
        question="Does a server that vanishes without notice cost a request?",
        fault=Fault.POWER_LOSS,
        objectives=(
            Objective(promise="no request failed", bound=equal("requests_failed", 0)),
            Objective(promise="replaced in time", bound=at_most("recovered_s", 90, "s")),
            _NO_CRASH,
            _quiet(BURST),
        ),
    ),
    _TRAINER_NOTICE,
    replace(
        _TRAINER_NOTICE,
        name="trainer-power-loss",
        question="Does the trainer come back from a machine that vanished?",
        fault=Fault.POWER_LOSS,
        objectives=(*_RESUMES, _quiet(BURST)),
    ),
    replace(
        _TRAINER_NOTICE,
        name="uploader-kill",
        question="Does training go on, and save again, when the uploader dies?",
        fault=Fault.UPLOADER_KILL,
        blast=Blast(of="uploader process"),
        objectives=(
            Objective(promise="saved again in time", bound=at_most("recovered_s", 90, "s")),
            Objective(promise="training went on", bound=equal("lost_steps", 0, "steps")),
            Objective(promise="not taken for finished", bound=equal("false_completions", 0)),
            _NO_CRASH,
        ),
    ),
    Drill(
        name="batch-power-loss",
        question="Is every item stored once when a worker vanishes in the middle?",
        place=Place.LOCAL,
        work=Work.BATCH,
        steady_state=SteadyState(bound=at_least("stored_items", ITEMS // 20), within_s=60),
        blast=Blast(of="batch worker", percent=50),
        fault=Fault.POWER_LOSS,
        stop_when=at_least("crashes", 1),
        recovery_s=120,
        objectives=(
            Objective(promise="recovered in time", bound=at_most("recovered_s", 90, "s")),
            Objective(promise="no item lost", bound=equal("items_lost", 0)),
            Objective(promise="nothing duplicated", bound=equal("items_duplicated", 0)),
            Objective(promise="no item given up", bound=equal("dead_letters", 0)),
            _NO_CRASH,
            _quiet(BURST),
        ),
        rollback="kill every process of the drill, its database included, and remove its data",
        budget=Budget(minutes=5),
    ),
    replace(
        _TRAINER_NOTICE,
        name="naive-notice",
        question="Control: what does the same eviction do to what tutorials teach?",
        work=Work.NAIVE,
        control=True,
    ),
    replace(
        _TRAINER_NOTICE,
        name="deaf-notice",
        question="Control: is a pod that never hears of SIGTERM found out?",
        work=Work.DEAF,
        control=True,
    ),
)
_COMES_BACK = (
    Objective(promise="recovered in time", bound=at_most("recovered_s", 120, "s")),
    Objective(promise="no failure charged", bound=equal("failures_charged", 0)),
    Objective(promise="nothing duplicated", bound=equal("pods_doubled", 0)),
    Objective(promise="not taken for finished", bound=equal("false_completions", 0)),
    Objective(promise="nothing crashed", bound=equal("pods_crashed", 0)),
    Objective(promise="only the named pods were hit", bound=equal("pods_outside_blast", 0)),
)
_LOST_STEPS = Objective(
    promise="lost work within one interval", bound=at_most("lost_steps", SAVE_EVERY, "steps"), essential=False
)
_EVICT = Drill(
    name="cluster-evict",
    question="Is a pod that the Eviction API takes replaced, and its Job not charged?",
    place=Place.CLUSTER,
    work=Work.NAMED,
    steady_state=SteadyState(bound=equal("pods_missing", 0), within_s=60),
    blast=Blast(of="pod", percent=50),
    fault=Fault.EVICT,
    stop_when=at_least("pods_outside_blast", 1),
    recovery_s=180,
    objectives=(*_COMES_BACK, _LOST_STEPS),
    rollback="nothing to put back: the Job replaces its pod",
    budget=Budget(minutes=5),
)
_CLUSTER = (
    _EVICT,
    replace(
        _EVICT,
        name="cluster-lone-node",
        question="Does one lost Spot node cost no failure and wake nobody?",
        fault=Fault.PREEMPT,
        blast=Blast(of="Spot node", percent=30),
        objectives=(*_COMES_BACK, _quiet(BURST)),
        rollback="open again the nodes that were closed",
    ),
    replace(
        _EVICT,
        name="cluster-storm",
        question="Does the work survive a storm over 30 % of its Spot nodes, and does an alert fire?",
        fault=Fault.PREEMPT,
        blast=Blast(of="Spot nodes", most=100, percent=30),
        objectives=(
            *_COMES_BACK,
            Objective(promise="the burst alert fires", bound=equal(f"fires:{BURST}", 1), essential=False),
        ),
        rollback="open again the nodes that were closed",
    ),
)
_NODE = replace(
    _EVICT,
    name="node-shutdown",
    question="Does our trainer survive a real Spot shutdown of a real kubelet's machine?",
    place=Place.NODE,
    steady_state=SteadyState(bound=at_least("commits", 1), within_s=180),
    fault=Fault.PREEMPT,
    blast=Blast(of="machine"),
    objectives=(
        Objective(promise="left in order", bound=equal("exit_code", EXIT_PREEMPTED)),
        *_COMES_BACK,
        replace(_LOST_STEPS, essential=True),
        _quiet(BURST),
    ),
    rollback="nothing to put back: the rig removes its machines",
    budget=Budget(minutes=8),
)
_GKE = replace(
    _EVICT,
    name="gke-maintenance",
    question="Does the work survive a preemption that Compute Engine itself simulates?",
    place=Place.GKE,
    fault=Fault.PREEMPT,
    blast=Blast(of="Spot VM", percent=50),
    recovery_s=900,
    objectives=(
        Objective(promise="recovered in time", bound=at_most("recovered_s", 600, "s")),
        *_COMES_BACK[1:],
        _LOST_STEPS,
        _quiet(BURST),
    ),
    rollback="nothing to put back: the pool replaces its machine",
    budget=Budget(minutes=20, usd=1),
)
DRILLS: dict[str, Drill] = {
    drill.name: drill
    for drill in (
        *_LOCAL,
        *_CLUSTER,
        _NODE,
        _GKE,
        replace(
            _GKE,
            name="gke-delete",
            question="Does the work survive a VM that is deleted under it?",
            fault=Fault.DELETE,
            control=True,  # its pool must replace the machine: only when it is asked for
        ),
    )
}


def find(name: str) -> Drill:
    if name in DRILLS:
        return DRILLS[name]
    near = get_close_matches(name, DRILLS, n=1)
    raise InputError(
        "no such drill",
        got=name,
        allowed=", ".join(DRILLS),
        fix=f"did you mean {near[0]}?" if near else "`holdfast drill list`",
    )


def of(place: Place) -> list[Drill]:
    """What `--target PLACE` runs: all but the controls."""
    return [drill for drill in DRILLS.values() if drill.place is place and not drill.control]
