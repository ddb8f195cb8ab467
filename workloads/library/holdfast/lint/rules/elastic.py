"""HF15x: elastic and sharded gangs.

Such a gang is an Indexed Job whose other pods continue, or wait in place, when one is lost.
"""

# Why it is so: infra/decisions/0035, and 0115 of sharded gangs.

from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Container, Job, Pod, as_int, as_list, as_text, dig
from holdfast.lint.registry import Context, rule
from holdfast.support.values import GIB, quantity
from holdfast.vocabulary.environment import ENV_GANG_MIN_NODES, ENV_GANG_NODES
from holdfast.vocabulary.kubernetes import ANNOTATION_STATE

DOC_INDEXED = (
    "https://kubernetes.io/docs/concepts/workloads/controllers/job/#backoff-limit-per-index"
)
DOC_SUCCESS = "https://kubernetes.io/docs/concepts/workloads/controllers/job/#success-policy"
DOC_DNS = "https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/"
_LABELS = "{app.kubernetes.io/name: train}"
# A change of the Job on Spot, and the objects that its gang needs.
GOOD = f"""\
spec:
  completions: 4
  parallelism: 4
  successPolicy: {{rules: [{{succeededCount: 1}}]}}
  template:
    metadata: {{labels: {_LABELS}}}
    spec:
      subdomain: train
      containers:
      - name: main
        image: trainer
        command: [python, train.py]
        env: [{{name: {ENV_GANG_NODES}, value: "4"}}, {{name: {ENV_GANG_MIN_NODES}, value: "2"}}]
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: train, namespace: training}}
spec: {{clusterIP: None, publishNotReadyAddresses: true, selector: {_LABELS}}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: train, namespace: training}}
spec:
  podSelector: {{matchLabels: {_LABELS}}}
  ingress:
  - from: [{{podSelector: {{matchLabels: {_LABELS}}}}}]
    ports: [{{port: 1024, endPort: 65535, protocol: TCP}}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: train
  namespace: training
  annotations: {{holdfast.dev/reason: the gang needs two nodes}}
spec: {{minAvailable: 2, selector: {{matchLabels: {_LABELS}}}}}
"""


def replace_once(old: str, new: str) -> str:
    """Returns the good example with one text replaced."""
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


_LAUNCHER = "python, -m, holdfast, train, ranks, --processes, '1', --sharded, --"
SHARDED = (
    replace_once(
        "metadata: {labels: ", f"metadata: {{annotations: {{{ANNOTATION_STATE}: 16Gi}}, labels: "
    )
    .replace("[python, train.py]", f"[{_LAUNCHER}, python, train.py]")
    .replace("minAvailable: 2", "minAvailable: 3")
    .replace("nvidia.com/gpu: 1}", "nvidia.com/gpu: 1, memory: 24Gi}")
)


def find_member(pod: Pod | None) -> Container | None:
    """Returns the container that is a member of an elastic gang; None where there is none."""
    for container in pod.main_containers if pod else []:
        is_elastic = container.runs("holdfast", "train", "elastic")
        if is_elastic or ENV_GANG_NODES in container.env:
            return container
    return None


def is_sharded(member: Container) -> bool:
    """Returns whether the other members wait in place for one that is lost."""
    return member.runs("holdfast", "train", "ranks") and "--sharded" in member.words


def _count_nodes(member: Container, default: int) -> int:
    return member.number("--nodes", ENV_GANG_NODES) or default


@rule(
    "HF150",
    "elastic-not-by-index",
    Severity.ERROR,
    on=Job,
    what="The Job of an elastic gang does not replace a lost pod by itself.",
    why=(
        "Without backoffLimitPerIndex the back-off or failure of one index applies to all. In a"
        " JobSet a lost pod restarts the others; with fewer pods at once than indices some never"
        " start."
    ),
    source=DOC_INDEXED,
    fix=(
        "a plain Job: completionMode Indexed, backoffLimitPerIndex, completions and parallelism ="
        " nodes"
    ),
    base="job",
    bad=replace_once("  parallelism: 4\n", "  parallelism: 4\n  backoffLimitPerIndex: null\n"),
    good=GOOD,
)
def elastic_not_by_index(job: Job, context: Context) -> Iterator[Hit]:
    member = find_member(job.pod)
    if member is None:
        return
    nodes = _count_nodes(member, job.parallelism)
    if job.in_jobset:
        yield Hit(job.path, "a JobSet restarts all of its pods for one")
    elif job.spec.get("completionMode") != "Indexed" or "backoffLimitPerIndex" not in job.spec:
        yield Hit(job.path, "failures are not counted by index")
    elif not nodes == as_int(job.spec.get("completions")) == as_int(job.spec.get("parallelism")):
        yield Hit((*job.path, "parallelism"), f"{nodes} nodes, {job.parallelism} pods at once")


@rule(
    "HF151",
    "elastic-job-never-ends",
    Severity.ERROR,
    on=Job,
    what="The Job of an elastic gang waits for every index to succeed.",
    why=(
        "An index that got no new node never succeeds: the Job stays open after the work is done,"
        " and its pending pod gets a node that has nothing to do."
    ),
    source=DOC_SUCCESS,
    fix="add successPolicy: {rules: [{succeededCount: 1}]}",
    base="job",
    bad=replace_once("  successPolicy: {rules: [{succeededCount: 1}]}\n", ""),
    good=GOOD,
)
def elastic_job_never_ends(job: Job, context: Context) -> Iterator[Hit]:
    if job.in_jobset or not find_member(job.pod):
        return
    for success_rule in as_list(dig(job.spec, "successPolicy", "rules")):
        if as_int(dig(success_rule, "succeededCount")) == 1:
            return
    yield Hit(job.path, "is complete only when every index has succeeded")


@rule(
    "HF152",
    "elastic-budget-is-not-the-least",
    Severity.ERROR,
    on=Job,
    what="An elastic gang has no PodDisruptionBudget for its smallest number of nodes.",
    why=(
        "Without it a drain may leave fewer nodes than the gang needs. With a higher number a drain"
        " waits without need."
    ),
    source="https://kubernetes.io/docs/tasks/run-application/configure-pdb/",
    fix="one PodDisruptionBudget over its pods, minAvailable = the gang's smallest number of nodes",
    base="job",
    bad=replace_once("minAvailable: 2", "minAvailable: 3"),
    good=GOOD,
)
def elastic_budget(job: Job, context: Context) -> Iterator[Hit]:
    member = find_member(job.pod)
    if member is None or job.pod is None:
        return
    if is_sharded(member) and not member.number("--min-nodes"):
        min_nodes = _count_nodes(member, job.parallelism) - 1
    else:
        min_nodes = member.number("--min-nodes", ENV_GANG_MIN_NODES) or 1
    budgets = context.index.find_selecting("PodDisruptionBudget", job.pod)
    limits = [as_int(budget.spec.get("minAvailable")) for budget in budgets]
    if min_nodes > 1 and limits != [min_nodes]:
        limits_text = ", ".join(map(str, limits)) or "no budget"
        yield Hit(job.path, f"the gang works with {min_nodes} nodes; its pods have {limits_text}")


@rule(
    "HF154",
    "elastic-without-names",
    Severity.ERROR,
    on=Pod,
    what="Members of an elastic gang cannot find each other by name before they are ready.",
    why=(
        "A pod has a DNS name only with a headless Service of its subdomain, and before it is ready"
        " only with publishNotReadyAddresses. Without it a new pod waits for the gang, and the gang"
        " for the pod."
    ),
    source=DOC_DNS,
    fix="set subdomain, and a Service of that name: clusterIP None, publishNotReadyAddresses true",
    base="job",
    bad=replace_once("publishNotReadyAddresses: true, ", ""),
    good=GOOD,
)
def elastic_without_names(pod: Pod, context: Context) -> Iterator[Hit]:
    if find_member(pod) is None or pod.job is None:
        return
    name = as_text(pod.spec.get("subdomain"))
    service = context.index.find("Service", name, pod.owner.namespace) if name else None
    if service is None:
        yield Hit(pod.spec_path, f"no Service {name}" if name else "has no subdomain")
        return
    is_headless = service.spec.get("clusterIP") == "None"
    if not is_headless or service.spec.get("publishNotReadyAddresses") is not True:
        message = f"Service {name} does not name pods that are not ready"
        yield Hit((*pod.spec_path, "subdomain"), message)


_AGENTS = (
    ("-m", "torch.distributed.run"),
    ("-m", "torch.distributed.launch"),
    ("accelerate", "launch"),
)


@rule(
    "HF157",
    "gang-under-torchrun",
    Severity.ERROR,
    on=Pod,
    what="A member of an elastic or sharded gang runs under torchrun.",
    why=(
        "torchrun's agent ends with 1 when a node is lost, so that each eviction counts as a crash."
        " Under a launcher that torchrun starts, each process of a node would be a launcher of its"
        " own, on the same ports."
    ),
    source="decision 0115 of Holdfast",
    fix="the job file starts the processes of a node: command: [python, train.py], processes: 8",
    base="job",
    bad=SHARDED.replace("--, python, train.py", "--, torchrun, train.py"),
    good=SHARDED,
)
def gang_under_torchrun(pod: Pod, context: Context) -> Iterator[Hit]:
    member = find_member(pod)
    if member and _runs_torchrun(member):
        yield Hit(member.command_path, "torchrun starts the processes of a node")


def _runs_torchrun(member: Container) -> bool:
    return "torchrun" in member.programs or any(member.runs(*agent) for agent in _AGENTS)


# Multiples of a node's shards in memory: its own staging memories, and one complete and one
# arriving copy of the neighbor's shards. With a folder for copies, two staging memories; without
# copies one.
MEMORIES = 5
MEMORIES_WITH_FOLDER = 2
COPIES_WITHOUT_PEER = 1


@rule(
    "HF158",
    "copies-do-not-fit",
    Severity.ERROR,
    on=Pod,
    what="The memory limit of a sharded gang's pods has no room for the copies of shards.",
    why=(
        "Each node stages its own shards and keeps those of another node. Without the room the"
        " copies are refused, and a lost node costs an upload interval; a program that needs the"
        " memory too is killed."
    ),
    source="decision 0115 of Holdfast",
    fix="copies_in: disk, which needs two fifths of the memory; more nodes; or more memory",
    base="job",
    bad=SHARDED.replace("16Gi", "32Gi"),
    good=SHARDED,
)
def copies_do_not_fit(pod: Pod, context: Context) -> Iterator[Hit]:
    member = find_member(pod)
    if member is None or not is_sharded(member):
        return
    state = quantity(pod.annotations.get(ANNOTATION_STATE))
    limit = quantity(member.limit("memory"))
    if state is None or limit is None:
        return
    nodes = member.number("--min-nodes") or _count_nodes(member, 1)
    count = MEMORIES_WITH_FOLDER if member.option("--copies-folder") else MEMORIES
    if member.option("--copies") == "0":
        count = COPIES_WITHOUT_PEER
    shard = state / nodes
    if count * shard > limit:
        need = f"{count} x {shard / GIB:.1f} GiB = {count * shard / GIB:.1f} GiB"
        yield Hit(
            member.path,
            f"{state / GIB:.1f} GiB over {nodes} nodes need {need} of memory,"
            f" the limit is {limit / GIB:.1f} GiB",
        )
