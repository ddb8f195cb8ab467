"""HF01x: flex-start and auto-provisioning. The autoscaler reads exact words; near misses do nothing."""

from collections.abc import Iterator

from holdfast.contract import pools as contract
from holdfast.contract.exit_codes import EXIT_PREEMPTED
from holdfast.contract.lifecycle import FLEX_MAX_RUN_S, FLEX_MIN_RUN_S
from holdfast.contract.pools import FLEX_TAINT, GPU_RESOURCE, SPOT_TAINT
from holdfast.lint.finding import Hit, Severity, constant
from holdfast.lint.objects import Job, Pod, as_int, as_list, as_map, as_text
from holdfast.lint.registry import Context, rule

DOC_FLEX = "https://cloud.google.com/kubernetes-engine/docs/how-to/dws-flex-start-training"
SOURCE_CA = "GoogleCloudPlatform/cluster-autoscaler pkg/autoprovisioning/injection.go"
_GPU = "- {key: nvidia.com/gpu, operator: Equal, value: present, effect: NoSchedule}"


@rule(
    "HF011", "flex-value-wrong", Severity.ERROR, on=Pod,
    what="The flex-start selector has another value than the autoscaler reads.",
    why='Only gke-flex-start: "true" or gke-provisioning: flex-start asks for flex-start; else the pod stays Pending.',
    source=SOURCE_CA, fix='write cloud.google.com/gke-flex-start: "true"', base="flex-pod",
    bad='nodeSelector: {cloud.google.com/gke-flex-start: "yes"}',
    good='nodeSelector: {cloud.google.com/gke-flex-start: "true"}',
)  # fmt: skip
def flex_value_wrong(pod: Pod, context: Context) -> Iterator[Hit]:
    place = context.place(pod)
    basis = constant("holdfast.contract.pools", "LABEL_FLEX_START", 'the label is "true"')
    for demand in place.demanded(contract.LABEL_FLEX_START):
        if demand.values != ("true",):
            yield Hit(demand.path, f"gke-flex-start is {','.join(demand.values)}, not true", basis)
    for demand in place.demanded(contract.LABEL_PROVISIONING):
        if not set(demand.values) <= {"standard", "spot", "flex-start", "preemptible"}:
            yield Hit(demand.path, f"{','.join(demand.values)} is no provisioning model", basis,
                      "write standard, spot or flex-start")  # fmt: skip


@rule(
    "HF012", "flex-toleration-wrong", Severity.ERROR, on=Pod,
    what="A flex-start toleration that is not exactly the taint's value, or that stands without the selector.",
    why="The autoscaler taints the new pool only for value true, never for Exists; a toleration alone is refused.",
    source=SOURCE_CA, fix=f"write {FLEX_TAINT.toleration()} beside the selector", base="flex-pod",
    bad=f"tolerations:\n- {{key: cloud.google.com/gke-flex-start, operator: Exists, effect: NoSchedule}}\n{_GPU}",
    good='tolerations:\n- {key: cloud.google.com/gke-flex-start, operator: Equal, value: "true", effect: NoSchedule}\n'
         f"{_GPU}",
)  # fmt: skip
def flex_toleration_wrong(pod: Pod, context: Context) -> Iterator[Hit]:
    basis = constant("holdfast.contract.pools", "FLEX_TAINT", f"the taint is {FLEX_TAINT}")
    for path, toleration in pod.tolerations:
        if as_text(toleration.get("key")) != FLEX_TAINT.key:
            continue
        if toleration.get("operator") == "Exists" or toleration.get("value") != FLEX_TAINT.value:
            field = "operator" if toleration.get("operator") == "Exists" else "value"
            yield Hit((*path, field), "the autoscaler does not read this flex-start toleration", basis)
        elif not context.place(pod).means_flex and not context.place(pod).demanded(contract.LABEL_COMPUTE_CLASS):
            yield Hit((*path, "key"), "tolerates flex-start without selecting it", basis)


@rule(
    "HF013", "spot-and-flex", Severity.ERROR, on=Pod,
    what="The pod selects Spot and flex-start together.",
    why="No machine is both; the autoscaler answers with an error and adds nothing.",
    source=SOURCE_CA, fix="decide for one; a ComputeClass can fall back from one to the other", base="flex-pod",
    bad='nodeSelector: {cloud.google.com/gke-spot: "true"}', good="nodeSelector: {cloud.google.com/gke-spot: null}",
)  # fmt: skip
def spot_and_flex(pod: Pod, context: Context) -> Iterator[Hit]:
    place = context.place(pod)
    spot = [d for d in place.demanded(contract.LABEL_SPOT) if d.values == ("true",)]
    spot += [d for d in place.demanded("cloud.google.com/gke-preemptible") if d.values == ("true",)]
    if spot and place.means_flex:
        basis = constant("holdfast.contract.capacity", "Capacity", "Spot and flex-start are two capacities")
        yield Hit(spot[0].path, "selects Spot and flex-start", basis)


@rule(
    "HF014", "spot-selector-with-compute-class", Severity.ERROR, on=Pod,
    what="A gke-spot selector beside a ComputeClass.",
    why="The class decides whether a node is Spot; the extra selector rules out its other priorities.",
    source="https://cloud.google.com/kubernetes-engine/docs/concepts/about-custom-compute-classes",
    fix="remove the gke-spot selector", base="job-pod",
    bad='nodeSelector: {holdfast.dev/pool-class: null, cloud.google.com/compute-class: gpu-l4,'
        ' cloud.google.com/gke-spot: "true"}',
    good='nodeSelector: {cloud.google.com/gke-spot: "true"}',
)  # fmt: skip
def spot_selector_with_class(pod: Pod, context: Context) -> Iterator[Hit]:
    place = context.place(pod)
    if place.demanded(contract.LABEL_COMPUTE_CLASS):
        for demand in [*place.demanded(contract.LABEL_SPOT), *place.demanded(contract.LABEL_FLEX_START)]:
            yield Hit(demand.path, f"{demand.key} beside a ComputeClass")


@rule(
    "HF015", "flex-with-spot-toleration", Severity.WARNING, on=Pod,
    what="A flex-start pod tolerates the Spot taint.",
    why="It does nothing there, and hides from the reader which capacity is meant.",
    source=SOURCE_CA, fix="remove the Spot toleration", base="flex-pod",
    bad=f"tolerations:\n- {{key: provisioning-tier, operator: Equal, value: preemptible, effect: NoSchedule}}\n{_GPU}",
    good=f"tolerations:\n{_GPU}",
)  # fmt: skip
def flex_with_spot_toleration(pod: Pod, context: Context) -> Iterator[Hit]:
    for path, toleration in pod.tolerations:
        if as_text(toleration.get("key")) == SPOT_TAINT.key and context.place(pod).means_flex:
            basis = constant(
                "holdfast.contract.pools", "SPOT_TAINT", "Spot pools carry this taint, flex-start nodes do not"
            )
            yield Hit((*path, "key"), "a Spot toleration on a flex-start pod does nothing", basis)


@rule(
    "HF016", "max-run-out-of-range", Severity.ERROR, on=Pod,
    what="The maximal run of a flex-start node is no number of seconds between 10 minutes and 7 days.",
    why="The autoscaler refuses the request.",
    source=SOURCE_CA, fix=f"write whole seconds from {FLEX_MIN_RUN_S} to {FLEX_MAX_RUN_S}, quoted", base="flex-pod",
    bad='nodeSelector: {cloud.google.com/gke-max-run-duration-seconds: "864000"}',
    good='nodeSelector: {cloud.google.com/gke-max-run-duration-seconds: "86400"}',
)  # fmt: skip
def max_run_out_of_range(pod: Pod, context: Context) -> Iterator[Hit]:
    place = context.place(pod)
    for demand in place.demanded(contract.LABEL_MAX_RUN) if place.means_flex else []:
        text = "".join(demand.values)
        if not text.isdecimal() or not FLEX_MIN_RUN_S <= int(text) <= FLEX_MAX_RUN_S:
            fact = f"a flex-start node runs {FLEX_MIN_RUN_S} to {FLEX_MAX_RUN_S} s"
            yield Hit(
                demand.path,
                f"{text} s is out of range",
                constant("holdfast.contract.lifecycle", "FLEX_MAX_RUN_S", fact),
            )


@rule(
    "HF017", "flex-job-outlives-node", Severity.WARNING, on=Job,
    what="A flex-start Job may run longer than its node.",
    why="The node ends at its maximal run whatever the pod does; a deadline makes that end a planned one. So does a"
        " process that stops in order before it, in a Job that ignores the code of such a stop.",
    source=DOC_FLEX,
    fix=f"set activeDeadlineSeconds to at most the node's maximal run, or add Ignore on exit code {EXIT_PREEMPTED}",
    base="flex",
    bad="spec: {activeDeadlineSeconds: 700000}", good="spec: {activeDeadlineSeconds: 86400}",
)  # fmt: skip
def flex_job_outlives_node(job: Job, context: Context) -> Iterator[Hit]:
    if job.pod is None or not context.place(job.pod).on_flex or _goes_on(job):
        return
    asked = context.place(job.pod).demanded(contract.LABEL_MAX_RUN)
    text = "".join(asked[0].values) if asked else ""
    most = min(int(text), FLEX_MAX_RUN_S) if text.isdecimal() else FLEX_MAX_RUN_S
    deadline = as_int(job.spec.get("activeDeadlineSeconds"))
    if deadline is None or deadline > most:
        asks = "has no deadline" if deadline is None else f"may run {deadline} s"
        basis = constant("holdfast.contract.lifecycle", "FLEX_MAX_RUN_S", f"its node ends after {most} s")
        yield Hit((*job.path, "activeDeadlineSeconds"), f"the Job {asks}", basis)


def _goes_on(job: Job) -> bool:
    """Whether an orderly stop is followed by a pod on the next node."""
    ignored = (as_map(r.get("onExitCodes")) for r in job.rules if r.get("action") == "Ignore")
    return any(c.get("operator") == "In" and EXIT_PREEMPTED in as_list(c.get("values")) for c in ignored)


@rule(
    "HF018", "parallelism-over-cap", Severity.ERROR, on=Pod,
    what="All pods together ask for more GPUs than the environment can ever give.",
    why="The last pods wait for ever; a gang of them never starts. (A Job has no maxParallelism.)",
    source="infra/environments", fix="lower parallelism, or raise the cap", base="flex",
    bad="spec: {parallelism: 640, completions: 640}", good="spec: {parallelism: 8, completions: 640}",
)  # fmt: skip
def parallelism_over_cap(pod: Pod, context: Context) -> Iterator[Hit]:
    place, wanted = context.place(pod), pod.gpus * pod.replicas
    pools = [pool for pool in place.pools if pool.accelerator]
    if not wanted or not pools:
        return
    kind, platform = pools[0].accelerator, context.platform
    fixed = sum(p.max_nodes * p.gpus_per_node for p in pools if p in platform.pools)
    automatic = platform.caps.get(kind, 0) if any(p not in platform.pools for p in pools) else 0
    if wanted > fixed + automatic:
        manual = next((p for p in pools if p in platform.pools), pools[0])
        basis = (
            platform.cap_basis(kind) if automatic else platform.basis(manual, f"its pools have at most {fixed} GPUs")
        )
        where = (*pod.job.path, "parallelism") if pod.job else ("spec", "replicas")
        limit = f"{fixed + automatic} x {kind} ({GPU_RESOURCE}) can exist"
        yield Hit(where, f"{pod.replicas} pods x {pod.gpus} GPU = {wanted}, but {limit}", basis)
