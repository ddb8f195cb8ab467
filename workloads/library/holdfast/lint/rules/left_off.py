"""HF830 to HF832: objects that are switched off, bound to a node, or of a class that makes nothing.

Why it is so: infra/decisions/0200.
"""

from collections.abc import Iterator

from holdfast.lint.finding import Hit, Severity
from holdfast.lint.known_values import load_table
from holdfast.lint.objects import Object, as_int, as_list, as_maps, as_text, dig
from holdfast.lint.registry import Context, rule

DOC_PAUSE = "https://kubernetes.io/docs/concepts/workloads/controllers/deployment/"
DOC_OVERVIEW = "https://kubernetes.io/docs/concepts/configuration/overview/"
DOC_CLASSES = "https://cloud.google.com/kubernetes-engine/docs/reference/crds/computeclass"
_MOST_RUN_S = 604_800
_LEAST_RUN_S = 600


@rule(
    "HF830",
    "left-paused",
    Severity.WARNING,
    on=Object,
    kinds=("Deployment", "CronJob", "ScaledObject"),
    what="A Deployment is paused, a CronJob suspended, or scaling by KEDA paused.",
    why="No change of a paused Deployment reaches its pods, and a suspended CronJob never runs.",
    source=DOC_PAUSE,
    fix="remove the field",
    base="serving",
    bad="""\
spec:
  paused: true
""",
    good="""\
spec:
  paused: false
""",
)
def check_pauses(obj: Object, context: Context) -> Iterator[Hit]:
    if obj.kind == "Deployment" and obj.spec.get("paused") is True:
        yield Hit(("spec", "paused"), "no update is rolled out")
    if obj.kind == "CronJob" and obj.spec.get("suspend") is True:
        yield Hit(("spec", "suspend"), "never runs")
    for key in obj.annotations if obj.kind == "ScaledObject" else ():
        if str(key).startswith("autoscaling.keda.sh/paused"):
            yield Hit(("metadata", "annotations", key), "scaling is paused", on_key=True)


@rule(
    "HF831",
    "port-of-the-node",
    Severity.WARNING,
    on=Object,
    kinds=("Deployment",),
    what="Several replicas of a Deployment take a port of their node.",
    why="Two of them fit on no node, and a roll-out needs a free node for its new pod.",
    source=DOC_OVERVIEW,
    fix="use a Service; hostPort is for a DaemonSet",
    base="serving-container",
    bad="""\
ports:
- containerPort: 8080
  hostPort: 8080
""",
    good="""\
ports:
- containerPort: 8080
""",
)
def check_host_ports(obj: Object, context: Context) -> Iterator[Hit]:
    replicas = as_int(obj.spec.get("replicas"))
    for pod in obj.pods if replicas and replicas > 1 else ():
        for container in pod.containers:
            for index, port in enumerate(as_maps(container.body.get("ports"))):
                if as_int(port.get("hostPort")):
                    path = (*container.path, "ports", index, "hostPort")
                    yield Hit(path, f"{replicas} replicas take port {port['hostPort']} of a node")


def _write_class(priority: str) -> str:
    return f"""\
apiVersion: cloud.google.com/v1
kind: ComputeClass
metadata:
  name: n2
spec:
  priorities:
  - machineFamily: n2
    spot: true
    {priority}
  - machineFamily: n2
  nodePoolAutoCreation:
    enabled: true
"""


@rule(
    "HF832",
    "class-contradicts",
    Severity.ERROR,
    on=Object,
    kinds=("ComputeClass",),
    what="A priority of a ComputeClass has fields that exclude each other, or a run out of range.",
    why="GKE refuses the class, or passes over the priority.",
    source=DOC_CLASSES,
    fix="Spot or flex-start; a type or a family of machines; a run of at most 7 days",
    bad=_write_class("flexStart: {enabled: true}"),
    good=_write_class("minCores: 8"),
)
def check_priorities(obj: Object, context: Context) -> Iterator[Hit]:
    for index, priority in enumerate(as_list(obj.spec.get("priorities"))):
        path = ("spec", "priorities", index)
        if dig(priority, "spot") is True and dig(priority, "flexStart", "enabled") is True:
            yield Hit((*path, "flexStart"), "flex-start nodes are not Spot")
        if dig(priority, "machineType") and dig(priority, "machineFamily"):
            yield Hit((*path, "machineFamily"), "machineType says the family already")
        seconds = as_int(dig(priority, "maxRunDurationSeconds"))
        if seconds is not None and not _LEAST_RUN_S <= seconds <= _MOST_RUN_S:
            yield Hit((*path, "maxRunDurationSeconds"), f"{seconds} s are not up to 7 days")
        machine = as_text(dig(priority, "machineType"))
        family, _, size = machine.partition("-")
        sizes = load_table("machines")["vcpus"].get(family)
        count = size.rpartition("-")[2]
        is_plain = size.startswith(("standard", "highmem", "highcpu")) and count.isdecimal()
        if sizes and is_plain and int(count[:6]) not in sizes:
            yield Hit((*path, "machineType"), f"no machine {machine}: {family} has {sizes} vCPUs")
        if dig(priority, "nodepools") and dig(priority, "machineFamily"):
            yield Hit((*path, "nodepools"), "pools that exist have their machines already")
