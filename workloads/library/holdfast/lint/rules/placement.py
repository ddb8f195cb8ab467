"""HF0xx: taints, tolerations and selectors against the pools of the environment."""

from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Pod, as_int, as_text, near
from holdfast.lint.placement import Placement
from holdfast.lint.platform import is_judged, tolerates
from holdfast.lint.registry import Context, rule
from holdfast.vocabulary import pools as contract
from holdfast.vocabulary.pools import (
    FLEX_TAINT,
    GPU_TAINT,
    SPOT_TAINT,
    SYSTEM_TAINT,
    UNREACHABLE,
    silence_tolerations,
)

DOC_TAINTS = "https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/"
DOC_SPOT = "https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms"
# Kubernetes, GKE and common add-ons set these on nodes; tolerating them says nothing about a pool.
FOREIGN_TAINTS = (
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "cloud.google.com/",
    "kubernetes.io/arch",
    "node-role.kubernetes.io/",
    "components.gke.io/",
    "google.com/tpu",
)
SYSTEM_NAMESPACES = (
    "kube-system",
    "gke-system",
    "gmp-system",
    "kueue-system",
    "jobset-system",
    "monitoring",
)
LONGEST_SILENCE_S = 60
_SILENT = contract.Taint(
    key=UNREACHABLE,
    value="",
    effect=contract.Effect.NO_EXECUTE,
)
_GPU = "{key: nvidia.com/gpu, operator: Equal, value: present, effect: NoSchedule}"
_OTHERS = (
    "- {key: provisioning-tier, operator: Equal, value: preemptible, effect: NoSchedule}\n-"
    f" {_GPU}"
)


@rule(
    "HF001",
    "taint-value-mismatch",
    Severity.ERROR,
    on=Pod,
    what="A toleration names a taint of this platform, but not its value or effect.",
    why=(
        "A toleration matches by key, value and effect together. With one wrong letter the pod"
        " stays Pending."
    ),
    source=DOC_TAINTS,
    fix="copy the taint from the pool",
    base="job-pod",
    bad=(
        "tolerations:\n- {key: provisioning-tier, operator: Equal, value: spot, effect:"
        f" NoSchedule}}\n- {_GPU}"
    ),
)
def taint_value_mismatch(pod: Pod, context: Context) -> Iterator[Hit]:
    for path, toleration in pod.tolerations:
        key = as_text(toleration.get("key"))
        taints = [t for t in context.platform.taints if t.key == key and t.key != FLEX_TAINT.key]
        if not taints or any(tolerates(toleration, taint) for taint in taints):
            continue
        field = "value" if toleration.get("value") != taints[0].value else "effect"
        pool = next((p for p in context.platform.pools if taints[0] in p.taints), None)
        if pool:
            basis = context.platform.basis(pool, f"pool {pool.name} has the taint {taints[0]}")
        else:
            basis = ""
        yield Hit(
            (*path, field),
            f"tolerates no taint: {key} is {taints[0].value}:{taints[0].effect.value}",
            basis,
        )


@rule(
    "HF002",
    "taint-key-unknown",
    Severity.WARNING,
    on=Pod,
    what="A toleration's key is on no pool of this environment.",
    why="It tolerates nothing here. Most often it is a typo of a key that the pod needs.",
    source=DOC_TAINTS,
    fix="use the pool's key, or remove the toleration",
    base="job-pod",
    bad=(
        "tolerations:\n- {key: provisioning-teir, operator: Equal, value: preemptible, effect:"
        f" NoSchedule}}\n- {_GPU}"
    ),
)
def taint_key_unknown(pod: Pod, context: Context) -> Iterator[Hit]:
    known = [taint.key for taint in context.platform.taints]
    for path, toleration in pod.tolerations:
        key = as_text(toleration.get("key"))
        if key and key not in known and "{{" not in key and not key.startswith(FOREIGN_TAINTS):
            meant = near(key, known, cutoff=0.5)
            hint = f"; did you mean {meant}?" if meant else ""
            basis = f"taints here: {', '.join(sorted(set(known)))}"
            yield Hit((*path, "key"), f"no pool has a taint {key}{hint}", basis)


@rule(
    "HF003",
    "selector-matches-no-pool",
    Severity.ERROR,
    on=Pod,
    what="No pool has the labels that the pod asks for, and auto-provisioning makes no such node.",
    why="The pod stays Pending for ever. The autoscaler cannot help.",
    source=DOC_TAINTS.replace("taint-and-toleration", "assign-pod-node"),
    fix="select labels that one pool has together",
    base="job-pod",
    bad="nodeSelector: {holdfast.dev/pool-class: spot-l4s}",
)
def selector_matches_no_pool(pod: Pod, context: Context) -> Iterator[Hit]:
    place = context.place(pod)
    if not place.demands or place.matching or _flex_is_wrong(place):
        return
    offered = context.platform.label_values
    asked = [d for d in place.demands if is_judged(d.key) and d.operator == "In"]
    wrong = [d for d in asked if not offered.get(d.key, set()) & set(d.values)]
    for demand in wrong or place.demands[:1]:
        known = sorted(offered.get(demand.key, ()))
        meant = near(" ".join(demand.values), known)
        hint = f"; did you mean {meant}?" if meant else ""
        if known:
            has = f"pools have {demand.key} = {', '.join(known)}"
        else:
            has = f"no pool has a label {demand.key}"
        fact = has if wrong else "no single pool has all the selected labels"
        basis = context.platform.basis(context.platform.pools[0], fact)
        yield Hit(
            demand.path, f"{demand.key}={','.join(demand.values)} matches no pool{hint}", basis
        )


def _flex_is_wrong(place: Placement) -> bool:
    """HF011 and HF013 say it better."""
    asked = place.demanded(contract.LABEL_FLEX_START)
    return any(d.values != ("true",) for d in asked) or bool(
        asked and place.demanded(contract.LABEL_SPOT)
    )


@rule(
    "HF004",
    "selector-without-toleration",
    Severity.ERROR,
    on=Pod,
    what="The pod selects pools and does not tolerate their taints.",
    why="A selector attracts, a taint repels. Without the toleration the pod stays Pending.",
    source=DOC_TAINTS,
    fix="add the toleration",
    base="job-pod",
    bad=f"tolerations: [{_GPU}]",
)
def selector_without_toleration(pod: Pod, context: Context) -> Iterator[Hit]:
    place = context.place(pod)
    missing = [[t for t in place.untolerated(pool) if t != GPU_TAINT] for pool in place.matching]
    if place.demands and missing and all(missing):
        taint = missing[0][0]
        pool = place.matching[0]
        basis = context.platform.basis(pool, f"pool {pool.name} has the taint {taint}")
        message = f"selects {pool.name} without tolerating {taint}"
        fix = f"add the toleration {taint.toleration()}"
        yield Hit(place.demands[0].path, message, basis, fix)


@rule(
    "HF005",
    "toleration-without-selector",
    Severity.WARNING,
    on=Pod,
    what="The pod tolerates the Spot taint, but no selector ties it to Spot nodes.",
    why=(
        "A toleration only permits. The scheduler may put the pod on on-demand nodes, which cost"
        " more."
    ),
    source=DOC_SPOT,
    fix="select the pool class, or cloud.google.com/gke-spot",
    base="job-pod",
    bad=(
        "nodeSelector: {holdfast.dev/pool-class: null, cloud.google.com/gke-spot: null,"
        " cloud.google.com/gke-accelerator: nvidia-l4}"
    ),
    good=(
        'nodeSelector: {cloud.google.com/gke-spot: "true", cloud.google.com/gke-accelerator:'
        " nvidia-l4}"
    ),
)
def toleration_without_selector(pod: Pod, context: Context) -> Iterator[Hit]:
    place = context.place(pod)
    if (
        place.ties_to_spot
        or place.on_flex
        or place.demanded(contract.LABEL_COMPUTE_CLASS)
        or not place.matching
    ):
        return
    other = next(
        (p for p in place.matching if p in context.platform.pools and not p.interruptible), None
    )
    if other:
        basis = context.platform.basis(other, f"its selectors also allow {other.name}, on demand")
    else:
        basis = ""
    for path, toleration in pod.tolerations:
        if as_text(toleration.get("key")) == SPOT_TAINT.key:
            yield Hit((*path, "key"), "tolerates Spot, but its selectors do not ask for it", basis)


@rule(
    "HF006",
    "infrastructure-on-spot",
    Severity.ERROR,
    on=Pod,
    what="A pod of the cluster's infrastructure may run on Spot.",
    why=(
        "Every recovery needs controllers, DNS and monitoring. If they are evicted with the work,"
        " nothing restarts it."
    ),
    source=DOC_SPOT,
    fix="remove the Spot toleration and selector, and run it on the system pool",
    base="serving",
    bad=(
        "metadata: {namespace: monitoring}\nspec: {template: {spec: {tolerations:"
        " [{key: provisioning-tier, operator: Equal, value: preemptible, effect: NoSchedule}]}}}"
    ),
)
def infrastructure_on_spot(pod: Pod, context: Context) -> Iterator[Hit]:
    system = as_text(pod.spec.get("priorityClassName")).startswith("system-")
    if pod.owner.kind == "DaemonSet" or not (system or pod.owner.namespace in SYSTEM_NAMESPACES):
        return
    pool = next((p for p in context.platform.pools if p.role is contract.Role.SYSTEM), None)
    for path, toleration in pod.tolerations:
        if tolerates(toleration, SPOT_TAINT):
            why = "system priority" if system else f"namespace {pod.owner.namespace}"
            basis = context.platform.basis(pool, f"pool {pool.name} is for it") if pool else ""
            yield Hit(path, f"infrastructure ({why}) tolerates {SPOT_TAINT}", basis)


@rule(
    "HF007",
    "tolerates-everything",
    Severity.WARNING,
    on=Pod,
    what="A toleration with operator Exists and no key tolerates every taint.",
    why="The pod may then run on Spot, on GPU nodes and on nodes that are shutting down.",
    source=DOC_TAINTS,
    fix="name the taints; only a DaemonSet may need all",
    base="serving-pod",
    bad="tolerations: [{operator: Exists}]",
)
def tolerates_everything(pod: Pod, context: Context) -> Iterator[Hit]:
    for path, toleration in pod.tolerations:
        if (
            toleration.get("operator") == "Exists"
            and not toleration.get("key")
            and pod.owner.kind != "DaemonSet"
        ):
            yield Hit(path, "tolerates every taint")


@rule(
    "HF008",
    "work-on-system-pool",
    Severity.WARNING,
    on=Pod,
    what="A Job tolerates the taint of the system pool.",
    why="The pool has room for controllers only. Work on it takes their CPU and memory.",
    source="workloads/library/holdfast/vocabulary/pools.py",
    fix="remove the toleration",
    base="job-pod",
    bad="tolerations: [{key: CriticalAddonsOnly, operator: Exists}]",
)
def work_on_system_pool(pod: Pod, context: Context) -> Iterator[Hit]:
    for path, toleration in pod.tolerations:
        if pod.job and as_text(toleration.get("key")) == SYSTEM_TAINT.key:
            yield Hit((*path, "key"), "a Job may run on the system pool")


@rule(
    "HF022",
    "toleration-malformed",
    Severity.ERROR,
    on=Pod,
    what="A toleration that the API server refuses, or that cannot do what it says.",
    why="Exists takes no value, tolerationSeconds needs NoExecute, and there are three effects.",
    source=DOC_TAINTS,
    fix="correct operator, effect or value",
    base="job-pod",
    bad=(
        "tolerations:\n- {key: provisioning-tier, operator: Exists, value: preemptible, effect:"
        f" NoSchedul}}\n- {_GPU}"
    ),
)
def toleration_malformed(pod: Pod, context: Context) -> Iterator[Hit]:
    effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
    operators = ("Exists", "Equal", "Lt", "Gt")
    for path, toleration in pod.tolerations:
        effect = toleration.get("effect")
        operator = toleration.get("operator")
        if effect not in (None, "", *effects):
            yield Hit((*path, "effect"), f"{effect} is no effect; there are {', '.join(effects)}")
        if operator not in (None, "", *operators):
            yield Hit((*path, "operator"), f"{operator} is no operator; write Equal or Exists")
        if operator == "Exists" and toleration.get("value"):
            yield Hit((*path, "value"), "operator Exists takes no value")
        if "tolerationSeconds" in toleration and effect != "NoExecute":
            yield Hit((*path, "tolerationSeconds"), "tolerationSeconds needs effect NoExecute")


@rule(
    "HF037",
    "silent-node-tolerated",
    Severity.INFO,
    on=Pod,
    what="A pod of a Job on Spot or flex-start stays for long on a node that stopped reporting.",
    why=(
        "By default Kubernetes leaves it there for 300 s, after about 50 s in which it finds the"
        " node silent."
    ),
    source=DOC_TAINTS + "#taint-based-evictions",
    fix=f"add the toleration {silence_tolerations()[0]}",
    base="job-pod",
    bad=f"tolerations:\n- {{key: {UNREACHABLE}, operator: Exists, effect: NoExecute}}\n{_OTHERS}",
    good=(
        f"tolerations:\n- {{key: {UNREACHABLE}, operator: Exists, effect: NoExecute,"
        f" tolerationSeconds: 10}}\n{_OTHERS}"
    ),
)
def silent_node_tolerated(pod: Pod, context: Context) -> Iterator[Hit]:
    if not (pod.job and context.place(pod).interruptible):
        return
    found = [
        (path, toleration) for path, toleration in pod.tolerations if tolerates(toleration, _SILENT)
    ]
    for path, toleration in found:
        seconds = as_int(toleration.get("tolerationSeconds"))
        if seconds is None or seconds > LONGEST_SILENCE_S:
            yield Hit(
                path, f"stays on a silent node for {'ever' if seconds is None else f'{seconds} s'}"
            )
    if not found:
        yield Hit(pod.at, "stays on a silent node for 300 s")
