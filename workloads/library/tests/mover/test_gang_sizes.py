"""Tests how many pods gangs yield and get back, and which of them Kueue must not preempt."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.clients.api import ApiError
from holdfast.mover import preemption_priority
from holdfast.mover.gang_plan import SLICE_S, Gang, Newcomer, Resize, grow, make_plan, parse_gang
from holdfast.mover.gang_sizes import CALM_S, POKE, GangSizes
from holdfast.mover.preemption_priority import ANNOTATION_BOOST
from holdfast.mover.queue_quotas import count_gpus, read_quotas
from holdfast.support.values import rfc3339
from holdfast.vocabulary.capacity import ANNOTATION_YIELDED, LABEL_LEAST_NODES
from holdfast.vocabulary.kubernetes import ANNOTATION_ELASTIC
from holdfast.vocabulary.pools import GPU_RESOURCE

NOW = 1_790_000_000.0
SELECTOR = {"cloud.google.com/gke-accelerator": "nvidia-l4"}


def condition(kind: str, status: str = "True", reason: str = "") -> Any:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "lastTransitionTime": rfc3339(NOW),
    }


WAITS = condition("QuotaReserved", "False", "WaitingForQuota")
HELD = (condition("QuotaReserved"), condition("Admitted"))


def pod_set(count: int, gpus: int = 1) -> Any:
    container = {"resources": {"limits": {GPU_RESOURCE: str(gpus)}}}
    spec = {
        "containers": [container],
        "nodeSelector": SELECTOR,
    }
    return {"count": count, "template": {"spec": spec}}


def workload(
    name: str,
    count: int,
    *conditions: Any,
    priority: int = 0,
    gpus: int = 1,
    **annotations: str,
) -> Any:
    status: Any = {"conditions": list(conditions)}
    if HELD[0] in conditions:
        assignment = {"flavors": {GPU_RESOURCE: "spot-l4"}}
        status["admission"] = {
            "clusterQueue": "spot",
            "podSetAssignments": [assignment],
        }
    return {
        "metadata": {
            "name": name,
            "namespace": "training",
            "uid": f"w-{name}",
            "creationTimestamp": rfc3339(NOW),
            "annotations": annotations,
            "ownerReferences": [
                {
                    "uid": f"u-{name}",
                    "name": name,
                    "controller": True,
                }
            ],
        },
        "spec": {
            "priority": priority,
            "queueName": "spot",
            "podSets": [pod_set(count, gpus)],
        },
        "status": status,
    }


def job(size: int = 8, name: str = "g", *, suspended: bool = False) -> Any:
    """Returns the Job of a gang of 4 to 8 nodes."""
    return {
        "metadata": {
            "name": name,
            "namespace": "training",
            "uid": f"u-{name}",
            "labels": {LABEL_LEAST_NODES: "4"},
            "annotations": {ANNOTATION_ELASTIC: "true"},
        },
        "spec": {
            "parallelism": size,
            "completions": 8,
            "suspend": suspended,
        },
    }


def gang(name: str = "g", size: int = 8, *, gpus: int = 1, **fields: Any) -> Gang:
    """Returns a gang of 4 to 8 nodes."""
    parsed = parse_gang(
        job(size, name),
        workload(
            name,
            fields.pop("admitted", size),
            *HELD,
            gpus=gpus,
            **fields,
        ),
    )
    assert parsed
    return parsed


def make_urgent(gpus: int) -> Any:
    """Returns the Workload of a job of a higher priority that waits."""
    return workload("urgent", gpus, WAITS, priority=20)


def running(size: int = 8, **annotations: str) -> Any:
    """Returns the Workload of a gang that has its quota."""
    return workload("g", size, *HELD, **annotations)


def newcomer(gpus: int, priority: int = 20, name: str = "urgent") -> Newcomer:
    body = workload(name, gpus, WAITS, priority=priority)
    return Newcomer(
        workload=body,
        priority=priority,
        queue="spot",
        gpus=gpus,
    )


def sizes(resizes: tuple[Resize, ...]) -> dict[str, int]:
    return {resize.gang.name: resize.size for resize in resizes}


@pytest.mark.parametrize(
    ("gpus", "free", "expected"),
    [(1, 0, 7), (3, 0, 5), (3, 1, 6), (4, 0, 4)],
)
def test_gang_yields_as_many_nodes_as_are_missing(gpus: int, free: int, expected: int) -> None:
    plan = make_plan([gang()], [newcomer(gpus)], free, {})
    assert sizes(plan.resizes) == {"g": expected}
    assert not plan.is_calm


def test_gang_yields_whole_nodes() -> None:
    plan = make_plan([gang(gpus=8)], [newcomer(9)], 0, {})
    assert sizes(plan.resizes) == {"g": 6}


def test_lower_priority_yields_first_and_the_next_gang_the_rest() -> None:
    gangs = [
        gang("a", priority=-5),
        gang("b", priority=-20),
        gang("c", 5),
    ]
    plan = make_plan(gangs, [newcomer(6)], 0, {})
    assert sizes(plan.resizes) == {"b": 4, "a": 6}


@pytest.mark.parametrize("priority", [0, -5])
def test_gang_yields_to_a_higher_priority_only(priority: int) -> None:
    plan = make_plan([gang()], [newcomer(1, priority)], 0, {})
    assert not plan.resizes
    assert plan.is_calm == (priority < 0)


def test_gang_does_not_yield_twice_for_the_same_job() -> None:
    gangs = [gang(size=7, admitted=8)]
    assert make_plan(gangs, [newcomer(1)], 0, {}).resizes == ()
    assert make_plan([gang(size=7)], [newcomer(1)], 1, {}).resizes == ()


def test_kueue_preempts_where_yielding_is_not_enough() -> None:
    urgent = newcomer(5)
    uid = urgent.workload["metadata"]["uid"]
    plan = make_plan([gang()], [urgent], 0, {uid: 8})
    assert (plan.resizes, plan.exposed, plan.poked) == ((), {"u-g"}, urgent)
    # A gang that would be preempted for nothing stays protected, and the next job is served.
    plan = make_plan(
        [gang()],
        [urgent, newcomer(2, name="second")],
        0,
        {uid: 4},
    )
    assert not plan.exposed
    assert sizes(plan.resizes) == {"g": 6}


def test_free_gpus_return_to_the_gang() -> None:
    assert sizes(grow([gang(size=5)], 2)) == {"g": 7}
    assert sizes(grow([gang(size=5)], 9)) == {"g": 8}
    assert sizes(grow([gang(size=5, gpus=4)], 7)) == {"g": 6}
    assert grow([gang(size=5, admitted=4)], 2) == ()
    assert grow([gang()], 2) == ()


@dataclass
class Cluster:
    """Fakes the API server with one ClusterQueue of eight GPUs."""

    jobs: list[Any] = field(default_factory=list)
    workloads: list[Any] = field(default_factory=list)
    used: int = 8
    refuses: bool = False
    merged: dict[str, list[Any]] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)

    def items(self, path: str, **query: str) -> list[Any]:
        plural = path.rpartition("/")[2]
        answers = {
            "jobs": self.jobs,
            "workloads": self.workloads,
            "localqueues": [
                {
                    "metadata": {"name": "spot"},
                    "spec": {"clusterQueue": "spot"},
                }
            ],
            "clusterqueues": [make_queue("spot", 8, self.used)],
            "resourceflavors": [make_flavor("spot-l4", SELECTOR)],
        }
        return answers[plural]

    def merge(self, path: str, change: Any) -> None:
        if self.refuses:
            raise ApiError(409, "changed")
        self.merged.setdefault(path.rpartition("/")[2], []).append(change)

    def create(self, path: str, body: Any) -> None:
        self.events.append(body["reason"])


def make_queue(name: str, nominal: int, used: int, cohort: str = "", limit: str = "") -> Any:
    quota = {
        "name": GPU_RESOURCE,
        "nominalQuota": str(nominal),
    }
    if limit:
        quota["borrowingLimit"] = limit
    flavor = {"name": "spot-l4", "resources": [quota]}
    reserved = {
        "name": "spot-l4",
        "resources": [{"name": GPU_RESOURCE, "total": str(used)}],
    }
    return {
        "metadata": {"name": name},
        "spec": {
            "cohortName": cohort,
            "resourceGroups": [{"flavors": [flavor]}],
        },
        "status": {"flavorsReservation": [reserved]},
    }


def make_flavor(name: str, labels: dict[str, str]) -> Any:
    return {
        "metadata": {"name": name},
        "spec": {"nodeLabels": labels},
    }


def step(mover: GangSizes, now_s: float = NOW) -> int:
    return mover.step(now_s, ("training",))


def act(cluster: Cluster) -> GangSizes:
    api: Any = cluster
    return GangSizes(api)


def boost(value: str) -> Any:
    return {"metadata": {"annotations": {ANNOTATION_BOOST: value}}}


def test_gang_is_protected_and_yields_to_the_job_that_waits() -> None:
    cluster = Cluster(
        jobs=[job()],
        workloads=[
            workload("g", 8, *HELD, priority=-5),
            make_urgent(2),
        ],
    )
    assert step(act(cluster)) == 1
    yielded = {"metadata": {"annotations": {ANNOTATION_YIELDED: "urgent"}}}
    assert cluster.merged == {"g": [boost("25"), yielded | {"spec": {"parallelism": 6}}]}
    assert cluster.events == ["GangShrunk"]


def test_gang_at_its_least_is_not_protected() -> None:
    protected = running(4, **{ANNOTATION_BOOST: "20"})
    cluster = Cluster(jobs=[job(4)], workloads=[protected])
    mover = act(cluster)
    assert step(mover) == 0
    assert cluster.merged == {"g": [boost("0")]}
    assert not mover.shielded


def test_gang_that_waits_is_not_protected() -> None:
    protected = workload("g", 6, WAITS, **{ANNOTATION_BOOST: "20"})
    cluster = Cluster(jobs=[job(6, suspended=True)], workloads=[protected])
    assert step(act(cluster)) == 1
    resized = {"metadata": {"annotations": {ANNOTATION_YIELDED: None}}}
    assert cluster.merged == {"g": [boost("0"), resized | {"spec": {"parallelism": 8}}]}


def wait_for_start(size: int, used: int, *workloads: Any, reason: str = "WaitingForQuota") -> Any:
    """Returns the change of a gang of 4 to 8 nodes that waits for quota with this size."""
    waits = condition("QuotaReserved", "False", reason)
    cluster = Cluster(
        jobs=[job(size, suspended=True)],
        workloads=[workload("g", size, waits), *workloads],
        used=used,
    )
    changes = step(act(cluster))
    specs = [change["spec"] for change in cluster.merged.get("g", ())]
    assert len(specs) == changes
    return specs[0] if specs else None


@pytest.mark.parametrize(
    ("label", "completions"), [("many", 8), ("4", None)], ids=["no number", "of any size"]
)
def test_job_without_sizes_spoils_no_pass(label: str, completions: int | None) -> None:
    bad = job(8, "bad", suspended=True)
    bad["metadata"]["labels"][LABEL_LEAST_NODES] = label
    bad["spec"]["completions"] = completions
    cluster = Cluster(
        jobs=[bad, job()],
        workloads=[
            workload("bad", 8, WAITS),
            workload(
                "g",
                8,
                *HELD,
                priority=-5,
            ),
            make_urgent(2),
        ],
    )
    assert step(act(cluster)) == 1
    assert cluster.merged.keys() == {"g"}


def test_gang_starts_with_the_nodes_that_are_free() -> None:
    assert wait_for_start(8, 3) == {"parallelism": 5}
    assert wait_for_start(5, 3) is None, "Kueue has not looked at it yet"
    assert wait_for_start(5, 2) == {"parallelism": 6}
    assert wait_for_start(5, 5) == {"parallelism": 8}
    assert wait_for_start(8, 5) is None, "it does not work with three nodes"
    assert wait_for_start(8, 0) is None


def test_gang_larger_than_the_whole_quota_starts_with_less() -> None:
    assert wait_for_start(8, 3, reason="ExceedsMaxQuota") == {"parallelism": 5}
    assert wait_for_start(8, 3, reason="NoMatchingFlavor") is None


def test_gang_that_starts_small_overtakes_no_other_job() -> None:
    assert wait_for_start(8, 3, make_urgent(6)) is None
    assert wait_for_start(8, 3, workload("humble", 6, WAITS, priority=-20)) == {"parallelism": 5}


def test_gang_that_may_preempt_others_waits_for_all_nodes() -> None:
    assert wait_for_start(8, 3, workload("humble", 3, *HELD, priority=-20)) is None
    assert wait_for_start(8, 3, workload("equal", 3, *HELD)) == {"parallelism": 5}


def test_kueue_looks_again_at_a_job_for_which_a_gang_was_exposed() -> None:
    urgent = make_urgent(6)
    protected = running(**{ANNOTATION_BOOST: "20"})
    cluster = Cluster(jobs=[job()], workloads=[protected, urgent])
    mover = act(cluster)
    assert step(mover) == 0
    assert cluster.merged == {"g": [boost("0")], "urgent": [boost(POKE)]}
    urgent["metadata"]["annotations"] = {ANNOTATION_BOOST: POKE}
    step(mover)
    assert cluster.merged["urgent"][-1] == boost("0")


def test_gang_grows_when_nobody_has_waited_for_a_while() -> None:
    cluster = Cluster(
        jobs=[job(6)],
        workloads=[running(6)],
        used=6,
    )
    mover = act(cluster)
    assert step(mover) == 0
    assert step(mover, NOW + CALM_S - 1) == 0
    urgent = make_urgent(1)
    cluster.workloads.append(urgent)
    assert step(mover, NOW + CALM_S) == 0, "Kueue admits it by itself"
    cluster.workloads.remove(urgent)
    assert step(mover, NOW + CALM_S + 1) == 0
    assert step(mover, NOW + 2 * CALM_S + 1) == 1
    assert cluster.merged["g"][-1]["spec"] == {"parallelism": 8}
    assert cluster.events == ["GangGrown"]


def test_gang_that_was_stopped_does_not_grow_while_its_pods_end() -> None:
    stopped = running(5)
    stopped["spec"]["active"] = False
    cluster = Cluster([job(5)], [stopped], used=5)
    mover = act(cluster)
    assert step(mover) == 0
    assert step(mover, NOW + CALM_S) == 0
    assert not cluster.merged


def test_growth_that_kueue_does_not_admit_is_taken_back() -> None:
    annotations = {"kueue.x-k8s.io/workload-slice-replacement-for": "training/g"}
    larger = workload("g", 8, WAITS, **annotations)
    cluster = Cluster(jobs=[job()], workloads=[running(6), larger])
    mover = act(cluster)
    assert step(mover, NOW + SLICE_S - CALM_S) == 0
    assert step(mover, NOW + SLICE_S) == 1
    assert cluster.merged["g"][-1]["spec"] == {"parallelism": 6}


def test_jobs_that_kueue_cannot_start_take_no_nodes() -> None:
    never = condition("QuotaReserved", "False", "ExceedsMaxQuota")
    waiting = [
        workload("too-large", 2, never, priority=20),
        workload("new", 2, priority=20),
        workload("stopped", 2, WAITS, priority=20),
        workload("other-gpu", 2, WAITS, priority=20),
    ]
    waiting[2]["spec"]["active"] = False
    selector = {"cloud.google.com/gke-accelerator": "nvidia-tesla-a100"}
    waiting[3]["spec"]["podSets"][0]["template"]["spec"]["nodeSelector"] = selector
    cluster = Cluster(jobs=[job()], workloads=[running(), *waiting])
    assert step(act(cluster)) == 0
    assert not cluster.events


def test_refused_change_is_tried_again() -> None:
    cluster = Cluster(
        jobs=[job()],
        workloads=[
            running(),
            make_urgent(2),
        ],
        refuses=True,
    )
    mover = act(cluster)
    assert step(mover) == 0
    cluster.refuses = False
    assert step(mover) == 1


def test_boost_by_work_at_stake_leaves_protected_gangs_alone() -> None:
    protected = running(**{ANNOTATION_BOOST: "20"})
    cluster = Cluster(workloads=[protected])
    api: Any = cluster
    late_s = NOW + 2 * preemption_priority.MIN_RUN_S
    namespaces = ("training",)

    def write_boosts(*protected_uids: str) -> int:
        uids = set(protected_uids)
        return preemption_priority.write_boosts(api, lambda _: (), late_s, namespaces, uids)

    assert write_boosts("u-g") == 0
    assert write_boosts() == 1


@pytest.mark.parametrize(
    ("queues", "free"),
    [
        ([make_queue("a", 8, 3)], 5),
        ([make_queue("a", 4, 6)], 0),
        (
            [
                make_queue("a", 4, 4, "all"),
                make_queue("b", 4, 1, "all"),
            ],
            3,
        ),
        (
            [
                make_queue("a", 4, 4, "all", "2"),
                make_queue("b", 4, 1, "all"),
            ],
            2,
        ),
        (
            [
                make_queue("a", 4, 4, "all"),
                make_queue("b", 4, 1, "others"),
            ],
            0,
        ),
    ],
    ids=["own", "reduced", "borrows", "borrows-to-its-limit", "other-cohort"],
)
def test_free_gpus_are_counted_as_kueue_lends_them(queues: list[Any], free: int) -> None:
    cluster = Cluster()
    items = cluster.items
    cluster.items = lambda path, **query: (  # type: ignore[method-assign]
        queues if path.endswith("/clusterqueues") else items(path)
    )
    api: Any = cluster
    quotas = read_quotas(api, ["training"])
    assert quotas.count_free("a", "spot-l4") == free
    assert quotas.count_free("unknown", "spot-l4") == 0


def test_requests_count_where_a_container_has_no_limit() -> None:
    containers = [
        {"resources": {"requests": {GPU_RESOURCE: "2"}}},
        {"resources": {}},
    ]
    assert (
        count_gpus(
            [
                {
                    "count": 3,
                    "template": {"spec": {"containers": containers}},
                }
            ]
        )
        == 6
    )
