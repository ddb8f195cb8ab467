"""HF0xx: taints, tolerations and selectors against the pools of the environment."""

from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Pod, as_int, as_text
from holdfast.lint.placement import Demand, Placement
from holdfast.lint.platform import is_judged
from holdfast.lint.registry import Context, rule
from holdfast.lint.spelling import find_near, misspells, suggest
from holdfast.vocabulary import pools as contract
from holdfast.vocabulary.pools import (
    FLEX_TAINT,
    GPU_TAINT,
    SPOT_TAINT,
    SYSTEM_TAINT,
    UNREACHABLE,
    silence_tolerations,
    tolerates,
)

DOC_TAINTS = "https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/"
DOC_SPOT = "https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms"
# Kubernetes, GKE and common add-ons set these on nodes; tolerating them says nothing about a pool.
GKE_TAINTS = (
    "cloud.google.com/compute-class",
    "cloud.google.com/gke-flex-start",
    "cloud.google.com/gke-preemptible",
    "cloud.google.com/gke-provisioning",
    "cloud.google.com/gke-queued",
    "cloud.google.com/gke-spot",
)
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
        taints = [taint for taint in context.platform.taints if taint.key == key]
        if not taints or key == FLEX_TAINT.key:
            continue
        if any(tolerates(toleration, taint) for taint in taints):
            continue
        taint = taints[0]
        field = "value" if toleration.get("value") != taint.value else "effect"
        message = f"tolerates no taint: {key} is {taint.value}:{taint.effect.value}"
        yield Hit((*path, field), message, _cite_taint(taint, context))


def _cite_taint(taint: contract.Taint, context: Context) -> str:
    for pool in context.platform.pools:
        if taint in pool.taints:
            return context.platform.basis(pool, f"pool {pool.name} has the taint {taint}")
    return ""


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
    taint_keys = [taint.key for taint in context.platform.taints]
    basis = f"taints here: {', '.join(sorted(set(taint_keys)))}"
    for path, toleration in pod.tolerations:
        key = as_text(toleration.get("key"))
        is_foreign = "{{" in key or key.startswith(FOREIGN_TAINTS)
        is_typo = key not in GKE_TAINTS and any(
            misspells(key, taint_key) for taint_key in GKE_TAINTS
        )
        if key and key not in taint_keys and (is_typo or not is_foreign):
            near_key = find_near(key, taint_keys, 0.5)
            hint = f"; did you mean {near_key}?" if misspells(key, near_key) else ""
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
    placement = context.place(pod)
    if not placement.demands or placement.matching or _is_flex_wrong(placement):
        return
    wrong_demands: list[Demand] = []
    for demand in placement.demands:
        values = context.platform.label_values.get(demand.key, set())
        if is_judged(demand.key) and demand.operator == "In" and values.isdisjoint(demand.values):
            wrong_demands.append(demand)
    first_pool = context.platform.pools[0]
    if not wrong_demands:
        labels = " and ".join(map(_format_demand, placement.demands))
        basis = context.platform.basis(first_pool, "no single pool has all the selected labels")
        is_single = len(placement.demands) == 1
        message = f"{labels} {'matches no pool' if is_single else 'match no pool together'}"
        yield Hit(placement.demands[0].path, message, basis)
    for demand in wrong_demands:
        values = sorted(context.platform.label_values.get(demand.key, ()))
        hint = suggest(" ".join(demand.values), values)
        fact = f"no pool has a label {demand.key}"
        if values:
            fact = f"pools have {demand.key} = {', '.join(values)}"
        basis = context.platform.basis(first_pool, fact)
        yield Hit(demand.path, f"{_format_demand(demand)} matches no pool{hint}", basis)


def _format_demand(demand: Demand) -> str:
    values = ",".join(demand.values)
    if demand.operator == "In":
        return f"{demand.key}={values}"
    return f"{demand.key} {demand.operator} {values}".rstrip()


def _is_flex_wrong(placement: Placement) -> bool:
    """Returns whether HF011 or HF013 finds the error, with a better message."""
    flex_demands = placement.find_demands(contract.LABEL_FLEX_START)
    if flex_demands and placement.find_demands(contract.LABEL_SPOT):
        return True
    return any(demand.values != ("true",) for demand in flex_demands)


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
    placement = context.place(pod)
    if not placement.demands or not placement.matching:
        return
    first_taints: list[contract.Taint] = []
    for pool in placement.matching:
        taints = [taint for taint in placement.find_repelling_taints(pool) if taint != GPU_TAINT]
        if not taints:
            return
        first_taints.append(taints[0])
    taint = first_taints[0]
    pool = placement.matching[0]
    basis = context.platform.basis(pool, f"pool {pool.name} has the taint {taint}")
    message = f"selects {pool.name} without tolerating {taint}"
    fix = f"add the toleration {taint.toleration()}"
    yield Hit(placement.demands[0].path, message, basis, fix)


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
    placement = context.place(pod)
    if placement.ties_to_spot or placement.on_flex or not placement.matching:
        return
    if placement.find_demands(contract.LABEL_COMPUTE_CLASS):
        return
    basis = ""
    for pool in placement.matching:
        if pool in context.platform.pools and not pool.interruptible:
            fact = f"its selectors also allow {pool.name}, on demand"
            basis = context.platform.basis(pool, fact)
            break
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
    namespace = pod.owner.namespace
    has_priority = as_text(pod.spec.get("priorityClassName")).startswith("system-")
    if pod.owner.kind == "DaemonSet" or not (has_priority or namespace in SYSTEM_NAMESPACES):
        return
    reason = "system priority" if has_priority else f"namespace {namespace}"
    basis = ""
    for pool in context.platform.pools:
        if pool.role is contract.Role.SYSTEM:
            basis = context.platform.basis(pool, f"pool {pool.name} is for it")
            break
    for path, toleration in pod.tolerations:
        if tolerates(toleration, SPOT_TAINT):
            yield Hit(path, f"infrastructure ({reason}) tolerates {SPOT_TAINT}", basis)


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
    if pod.owner.kind == "DaemonSet":
        return
    for path, toleration in pod.tolerations:
        if toleration.get("operator") == "Exists" and not toleration.get("key"):
            yield Hit(path, "tolerates every taint")


@rule(
    "HF008",
    "work-on-system-pool",
    Severity.WARNING,
    on=Pod,
    what="A Job tolerates the taint of the system pool.",
    why="The pool has room for controllers only. Work on it takes their CPU and memory.",
    source="holdfast/vocabulary/pools.py",
    fix="remove the toleration",
    base="job-pod",
    bad="tolerations: [{key: components.gke.io/gke-managed-components, operator: Exists}]",
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
    what=(
        "The API server refuses a toleration, or the toleration cannot have the effect that it"
        " states."
    ),
    why=(
        "Exists takes no value, all else needs a key, tolerationSeconds needs NoExecute, and there"
        " are three effects."
    ),
    source=DOC_TAINTS,
    fix="correct key, operator, effect or value",
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
        if operator != "Exists" and not toleration.get("key"):
            yield Hit(path, "has no key, and its operator is not Exists")
        if operator == "Exists" and toleration.get("value"):
            yield Hit((*path, "value"), "operator Exists takes no value")
        if "tolerationSeconds" in toleration and effect != "NoExecute":
            yield Hit((*path, "tolerationSeconds"), "tolerationSeconds needs effect NoExecute")


@rule(
    "HF037",
    "silent-node-tolerated",
    Severity.INFO,
    on=Pod,
    what="A pod of a Job on Spot or flex-start stays long on a node that stopped reporting.",
    why=(
        "By default Kubernetes evicts it 300 s after it marks the node as silent, which takes"
        " about 50 s."
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
    is_tolerated = False
    for path, toleration in pod.tolerations:
        if not tolerates(toleration, _SILENT):
            continue
        is_tolerated = True
        seconds = as_int(toleration.get("tolerationSeconds"))
        if seconds is None:
            yield Hit(path, "stays on a silent node for ever")
        elif seconds > LONGEST_SILENCE_S:
            yield Hit(path, f"stays on a silent node for {seconds} s")
    if not is_tolerated:
        yield Hit(pod.spec_path, "stays on a silent node for 300 s")
