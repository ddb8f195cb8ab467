"""HF847 to HF849: numbers that have to fit each other, in budgets, policies and options.

Why it is so: infra/decisions/0200.
"""

import re
from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.object_index import get_selector
from holdfast.lint.objects import Container, Object, Pod, as_int, as_list, as_text
from holdfast.lint.registry import Context, rule
from holdfast.lint.rules.stock import get_repository

DOC_ETCD = "https://etcd.io/docs/latest/faq/"
DOC_POLICY = "https://kubernetes.io/docs/concepts/services-networking/network-policies/"
DOC_BATCH = "https://www.deepspeed.ai/docs/config-json/"
# Stores that answer only while more than half of their members are there.
_QUORUM = re.compile(
    r"(^|[-_])(etcd|consul|zookeeper|nats|rabbitmq|cockroach|mongo|mongodb|qdrant|kafka|redpanda"
    r"|vault|milvus|weaviate|elasticsearch|opensearch|clickhouse-keeper)($|[-_])"
)
_PERCENT = re.compile(r"(\d{1,3})%")
_TOTALS = ("--global-batch-size", "--global-batch", "--train-batch-size", "--total-batch-size")
_MICROS = (
    *("--micro-batch-size", "--micro-batch", "--per-device-train-batch-size"),
    *("--per-device-batch-size", "--train-micro-batch-size-per-gpu"),
)
_STEPS = (
    *("--gradient-accumulation-steps", "--grad-accum", "--grad-accum-steps"),
    *("--accumulate-grad-batches", "--gradient-accumulation"),
)
# Ranks that share one copy of the model get the same items.
_SPLITS = (
    *("--tensor-model-parallel-size", "--pipeline-model-parallel-size"),
    *("--context-parallel-size", "--tensor-parallel", "--pipeline-parallel"),
    *("--tensor-parallel-size", "--pipeline-parallel-size", "--sequence-parallel-size"),
    *("--tp", "--pp", "--cp"),
)
_DEFAULT_SPLITS = ("--sharding", "--mesh", "--parallelism", "--tensor-parallel-degree")


def _write_store(limit: str) -> str:
    return f"""\
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: etcd
  namespace: research
spec:
  serviceName: etcd
  replicas: 3
  selector:
    matchLabels:
      app: etcd
  template:
    metadata:
      labels:
        app: etcd
    spec:
      containers:
      - name: etcd
        image: quay.io/coreos/etcd:v3.6.1
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: etcd
  namespace: research
spec:
  {limit}
  selector:
    matchLabels:
      app: etcd
"""


@rule(
    "HF847",
    "budget-loses-the-quorum",
    Severity.ERROR,
    on=Object,
    kinds=("PodDisruptionBudget",),
    what="A budget over a replicated store lets members go until no majority is left.",
    why="The store takes no writes during each drain or upgrade of nodes.",
    source=DOC_ETCD,
    fix="maxUnavailable: 1",
    bad=_write_store("maxUnavailable: 2"),
    good=_write_store("maxUnavailable: 1"),
)
def check_quorum(obj: Object, context: Context) -> Iterator[Hit]:
    pods = context.index.select_pods(obj.namespace, obj.spec.get("selector"))
    if len(pods) != 1 or pods[0].owner.kind != "StatefulSet" or not _keeps_quorum(pods[0]):
        return
    total = pods[0].replicas
    for field in ("maxUnavailable", "minAvailable"):
        bound = _count(obj.spec.get(field), total)
        if bound is None:
            continue
        members = total - bound if field == "maxUnavailable" else bound
        if total > 2 and members < total // 2 + 1:
            message = (
                f"leaves {max(0, members)} of {total} members; a majority are {total // 2 + 1}"
            )
            yield Hit(("spec", field), message)


def _keeps_quorum(pod: Pod) -> bool:
    for container in pod.main_containers:
        name = get_repository(container).rpartition("/")[2]
        if _QUORUM.search(name) or _QUORUM.search(container.name):
            return True
    return False


def _count(bound: object, total: int) -> int | None:
    """Returns the number of pods of a bound, rounded up as Kubernetes does."""
    match = _PERCENT.fullmatch(as_text(bound))
    return -(-int(match[1]) * total // 100) if match else as_int(bound)


def _write_policy(egress: str) -> str:
    return f"""\
metadata:
  name: server
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: server
  namespace: research
spec:
  podSelector:
    matchLabels:
      app: api
  policyTypes: [Ingress, Egress]
  ingress:
  - ports:
    - port: 8080
{egress}
"""


@rule(
    "HF848",
    "egress-closed-by-its-type",
    Severity.WARNING,
    on=Object,
    kinds=("NetworkPolicy",),
    what="A NetworkPolicy has rules for ingress, the type Egress, and no rule for egress.",
    why="The pods reach nothing at all: no names, no bucket, no metadata server.",
    source=DOC_POLICY,
    fix="remove Egress from policyTypes, or write egress rules; `egress: []` closes it on purpose",
    base="serving",
    bad=_write_policy(""),
    good=_write_policy("  egress:\n  - {}"),
)
def check_egress(obj: Object, context: Context) -> Iterator[Hit]:
    types = as_list(obj.spec.get("policyTypes"))
    is_forgotten = "Egress" in types and "egress" not in obj.spec
    if not is_forgotten or not as_list(obj.spec.get("ingress")):
        return
    if not any(get_selector(obj).values()):
        return
    path = ("spec", "policyTypes", types.index("Egress"))
    for pod in context.index.select_pods(obj.namespace, get_selector(obj)):
        policies = context.index.find_selecting("NetworkPolicy", pod)
        if any(as_list(policy.spec.get("egress")) for policy in policies):
            return
    yield Hit(path, "closes all egress of its pods: there is no egress rule")


def _train(total: int) -> str:
    return f"""\
command:
- python
- train.py
- --global-batch-size={total}
- --per-device-train-batch-size=4
- --gradient-accumulation-steps=8
"""


@rule(
    "HF849",
    "batch-differs-from-its-product",
    Severity.WARNING,
    on=Pod,
    what="The global batch of a command is not micro batch x accumulation x ranks.",
    why="The trainer ends at its start, or trains with another batch than the one stated.",
    source=DOC_BATCH,
    fix="leave out one of the sizes, or correct the product",
    base="container",
    bad=_train(256),
    good=_train(64),
)
def check_batch(pod: Pod, context: Context) -> Iterator[Hit]:
    for container in pod.main_containers:
        total = _find_number(container, _TOTALS)
        micro = _find_number(container, _MICROS)
        ranks = container.gpus * max(1, pod.replicas)
        has_mesh = any(container.option(option) for option in _DEFAULT_SPLITS)
        is_whole = sum(bool(other.gpus) for other in pod.owner.pods) == 1
        if not total or not micro or not ranks or pod.job is None or has_mesh or not is_whole:
            continue
        for option in _SPLITS:
            split = _find_number(container, (option,)) or 1
            ranks = ranks // split if ranks % split == 0 else 0
        steps = _find_number(container, _STEPS)
        product = micro * ranks * (steps or 1)
        is_wrong = total != product if steps else bool(product and total % product)
        if product and is_wrong:
            shown = f"{micro} x {ranks} ranks" + (f" x {steps} steps" if steps else "")
            relation = "and" if steps else "no multiple of"
            message = f"the global batch is {total}, {relation} {shown}"
            yield Hit(container.command_path, f"{message}: {product}")


def _find_number(container: Container, options: tuple[str, ...]) -> int | None:
    """Returns the number of the first option that is given, with - or _ in its name."""
    for option in options:
        name = "--" + option[2:].replace("-", "_")
        number = container.number(option)
        number = container.number(name) if number is None else number
        if number is not None:
            return number
    return None
