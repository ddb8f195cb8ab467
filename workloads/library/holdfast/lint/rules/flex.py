"""HF01x: flex-start and auto-provisioning. The autoscaler reads exact words and ignores others."""

from collections.abc import Iterator

from holdfast.lint.examples import SILENT
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Job, Pod, as_int, as_list, as_map, as_text
from holdfast.lint.registry import Context, rule
from holdfast.vocabulary import pools as contract
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from holdfast.vocabulary.lifecycle import FLEX_MAX_RUN_S, FLEX_MIN_RUN_S
from holdfast.vocabulary.pools import FLEX_TAINT, GPU_RESOURCE, SPOT_TAINT

DOC_FLEX = "https://cloud.google.com/kubernetes-engine/docs/how-to/dws-flex-start-training"
SOURCE_CA = "GoogleCloudPlatform/cluster-autoscaler pkg/autoprovisioning/injection.go"
_GPU = "- {key: nvidia.com/gpu, operator: Equal, value: present, effect: NoSchedule}\n- " + SILENT
_QUEUED_RUN = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"
_MODELS = {"standard", "spot", "flex-start", "preemptible"}


@rule(
    "HF011",
    "flex-value-wrong",
    Severity.ERROR,
    on=Pod,
    what="The flex-start selector has a value that the autoscaler does not read.",
    why=(
        'Only gke-flex-start: "true" or gke-provisioning: flex-start asks for flex-start. Else the'
        " pod stays Pending."
    ),
    source=SOURCE_CA,
    fix='write cloud.google.com/gke-flex-start: "true"',
    base="flex-pod",
    bad='nodeSelector: {cloud.google.com/gke-flex-start: "yes"}',
)
def flex_value_wrong(pod: Pod, context: Context) -> Iterator[Hit]:
    placement = context.place(pod)
    for demand in placement.find_demands(contract.LABEL_FLEX_START):
        if demand.values != ("true",):
            yield Hit(demand.path, f"gke-flex-start is {','.join(demand.values)}, not true")
    for demand in placement.find_demands(contract.LABEL_PROVISIONING):
        if not set(demand.values) <= _MODELS:
            message = f"{','.join(demand.values)} is no provisioning model"
            yield Hit(demand.path, message, fix="write standard, spot or flex-start")


@rule(
    "HF012",
    "flex-toleration-wrong",
    Severity.ERROR,
    on=Pod,
    what=(
        "A flex-start toleration does not have exactly the taint's value, or the selector is"
        " missing."
    ),
    why=(
        "The autoscaler taints the new pool for value true only, not for Exists. It refuses a"
        " toleration alone."
    ),
    source=SOURCE_CA,
    fix=f"write {FLEX_TAINT.toleration()} and the selector",
    base="flex-pod",
    bad=(
        "tolerations:\n- {key: cloud.google.com/gke-flex-start, operator: Exists, effect:"
        f" NoSchedule}}\n{_GPU}"
    ),
    good=(
        'tolerations:\n- {key: cloud.google.com/gke-flex-start, operator: Equal, value: "true",'
        f" effect: NoSchedule}}\n{_GPU}"
    ),
)
def flex_toleration_wrong(pod: Pod, context: Context) -> Iterator[Hit]:
    placement = context.place(pod)
    for path, toleration in pod.tolerations:
        if as_text(toleration.get("key")) != FLEX_TAINT.key:
            continue
        message = "the autoscaler does not read this flex-start toleration"
        if toleration.get("operator") == "Exists":
            yield Hit((*path, "operator"), message)
        elif toleration.get("value") != FLEX_TAINT.value:
            yield Hit((*path, "value"), message)
        elif not placement.means_flex and not placement.find_demands(contract.LABEL_COMPUTE_CLASS):
            yield Hit((*path, "key"), "tolerates flex-start without selecting it")


@rule(
    "HF013",
    "spot-and-flex",
    Severity.ERROR,
    on=Pod,
    what="The pod selects Spot and flex-start together.",
    why="No machine is both. The autoscaler reports an error and adds nothing.",
    source=SOURCE_CA,
    fix="choose one; a ComputeClass can fall back from one to the other",
    base="flex-pod",
    bad='nodeSelector: {cloud.google.com/gke-spot: "true"}',
    good="nodeSelector: {cloud.google.com/gke-spot: null}",
)
def spot_and_flex(pod: Pod, context: Context) -> Iterator[Hit]:
    placement = context.place(pod)
    if not placement.means_flex:
        return
    for label in (contract.LABEL_SPOT, "cloud.google.com/gke-preemptible"):
        for demand in placement.find_demands(label):
            if demand.values == ("true",):
                yield Hit(demand.path, "selects Spot and flex-start")
                return


@rule(
    "HF015",
    "flex-with-spot-toleration",
    Severity.WARNING,
    on=Pod,
    what="A flex-start pod tolerates the Spot taint.",
    why="It has no effect there, and a reader cannot see which capacity is meant.",
    source=SOURCE_CA,
    fix="remove the Spot toleration",
    base="flex-pod",
    bad=(
        "tolerations:\n- {key: provisioning-tier, operator: Equal, value: preemptible, effect:"
        f" NoSchedule}}\n{_GPU}"
    ),
)
def flex_with_spot_toleration(pod: Pod, context: Context) -> Iterator[Hit]:
    if not context.place(pod).means_flex:
        return
    for path, toleration in pod.tolerations:
        if as_text(toleration.get("key")) == SPOT_TAINT.key:
            yield Hit((*path, "key"), "a Spot toleration on a flex-start pod has no effect")


@rule(
    "HF016",
    "max-run-out-of-range",
    Severity.ERROR,
    on=Pod,
    what=(
        "The maximal run of a flex-start node is no number of seconds between 10 minutes and 7"
        " days."
    ),
    why="The autoscaler refuses the request.",
    source=SOURCE_CA,
    fix=f"write whole seconds from {FLEX_MIN_RUN_S} to {FLEX_MAX_RUN_S}, quoted",
    base="flex-pod",
    bad='nodeSelector: {cloud.google.com/gke-max-run-duration-seconds: "864000"}',
)
def max_run_beyond_limits(pod: Pod, context: Context) -> Iterator[Hit]:
    placement = context.place(pod)
    for demand in placement.find_demands(contract.LABEL_MAX_RUN) if placement.means_flex else []:
        text = "".join(demand.values)
        if not text.isdecimal() or not FLEX_MIN_RUN_S <= int(text) <= FLEX_MAX_RUN_S:
            yield Hit(demand.path, f"{text} s is out of range")
    bodies = ((("metadata",), pod.owner.annotations), ((*pod.path, "metadata"), pod.annotations))
    for path, annotations in dict(bodies).items():
        text = as_text(annotations.get(_QUEUED_RUN))
        is_right = text.isdecimal() and FLEX_MIN_RUN_S <= int(text[:12]) <= FLEX_MAX_RUN_S
        if text and not is_right:
            yield Hit((*path, "annotations", _QUEUED_RUN), f"{text} s is out of range")


@rule(
    "HF017",
    "flex-job-outlives-node",
    Severity.WARNING,
    on=Job,
    what="A flex-start Job may run longer than its node.",
    why=(
        "The node ends at its maximal run, whatever the pod does. With an earlier deadline the"
        " stop is planned. A process may also stop in order, if the Job ignores its exit code."
    ),
    source=DOC_FLEX,
    base="flex",
    fix=(
        "set activeDeadlineSeconds to at most the node's maximal run, or add Ignore on exit code"
        f" {EXIT_PREEMPTED}"
    ),
    bad="spec: {activeDeadlineSeconds: 700000}",
)
def flex_job_outlives_node(job: Job, context: Context) -> Iterator[Hit]:
    is_queued = _QUEUED_RUN in job.owner.annotations and "activeDeadlineSeconds" in job.spec
    if job.pod is None or not (is_queued or context.place(job.pod).on_flex) or _ignores_stops(job):
        return
    max_run_s = FLEX_MAX_RUN_S
    for demand in context.place(job.pod).find_demands(contract.LABEL_MAX_RUN)[:1]:
        text = "".join(demand.values)
        if text.isdecimal():
            max_run_s = min(int(text), FLEX_MAX_RUN_S)
    run = as_text(job.owner.annotations.get(_QUEUED_RUN))
    if run.isdecimal():
        max_run_s = min(int(run[:9]), max_run_s)
    deadline_s = as_int(job.spec.get("activeDeadlineSeconds"))
    if deadline_s is not None and deadline_s <= max_run_s:
        return
    fact = "has no deadline" if deadline_s is None else f"may run {deadline_s} s"
    path = (*job.path, "activeDeadlineSeconds")
    yield Hit(path, f"the Job {fact}", f"its node ends after {max_run_s} s")


def _ignores_stops(job: Job) -> bool:
    """Returns whether a Job ignores orderly stops, so that a pod continues on the next node."""
    for failure_rule in job.rules:
        codes = as_map(failure_rule.get("onExitCodes"))
        is_ignored = failure_rule.get("action") == "Ignore" and codes.get("operator") == "In"
        if is_ignored and EXIT_PREEMPTED in as_list(codes.get("values")):
            return True
    return False


@rule(
    "HF018",
    "parallelism-over-cap",
    Severity.ERROR,
    on=Pod,
    what="All pods together ask for more GPUs than the environment can have.",
    why=(
        "The last pods wait for ever, and a gang of them does not start. (A Job has no"
        " maxParallelism.)"
    ),
    source="the platform document",
    fix="lower parallelism, or raise the cap",
    base="flex",
    bad="spec: {parallelism: 640, completions: 640}",
    good="spec: {parallelism: 8, completions: 640}",
)
def parallelism_over_cap(pod: Pod, context: Context) -> Iterator[Hit]:
    demand = pod.gpus * pod.replicas
    pools = context.place(pod).gpu_pools
    if not demand or not pools:
        return
    kind = pools[0].accelerator
    platform = context.platform
    own_pools = [pool for pool in pools if pool in platform.pools]
    fixed = sum(pool.max_nodes * pool.gpus_per_node for pool in own_pools)
    automatic = platform.caps.get(kind, 0) if len(own_pools) < len(pools) else 0
    if demand <= fixed + automatic:
        return
    if automatic:
        basis = platform.cap_basis(kind)
    else:
        basis = platform.basis((own_pools or pools)[0], f"its pools have at most {fixed} GPUs")
    path = (*pod.job.path, "parallelism") if pod.job else ("spec", "replicas")
    limit = f"{fixed + automatic} x {kind} ({GPU_RESOURCE}) can exist"
    yield Hit(path, f"{pod.replicas} pods x {pod.gpus} GPU = {demand}, but {limit}", basis)
