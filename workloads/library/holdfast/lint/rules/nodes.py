"""HF02x: machines and zones against what the pod needs."""

from collections.abc import Iterator

from holdfast.contract import pools as contract
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object, Pod, as_map, quantity
from holdfast.lint.platform import machine_size
from holdfast.lint.registry import Context, rule


@rule(
    "HF020", "pod-larger-than-node", Severity.ERROR, on=Pod,
    what="The pod asks for more CPU or memory than any matching machine has.",
    why="It never fits, whatever the autoscaler adds.",
    source="workloads/library/holdfast/contract/machines.py", fix="ask for less, or select a larger machine", base="container",
    bad='resources: {limits: {cpu: "32", memory: 400Gi, ephemeral-storage: 4Gi, nvidia.com/gpu: "1"}}',
    good='resources: {limits: {cpu: "4", memory: 16Gi, ephemeral-storage: 4Gi, nvidia.com/gpu: "1"}}',
)  # fmt: skip
def pod_larger_than_node(pod: Pod, context: Context) -> Iterator[Hit]:
    pools = context.place(pod).pools
    main = [c for c in pod.containers if "containers" in c.path]
    for index, resource in enumerate(("cpu", "memory")):
        asked = sum(quantity(c.request(resource)) or 0 for c in main)
        most = max((machine_size(pool)[index] for pool in pools), default=0)
        if pools and asked > most:
            largest = max(pools, key=lambda pool: machine_size(pool)[index])
            size = f"{most:g} vCPU" if index == 0 else f"{most / 2**30:g} GiB"
            basis = context.platform.basis(largest, f"{largest.machine_type} of pool {largest.name} has {size}")
            yield Hit(main[0].path, f"asks for more {resource} than any matching node has", basis)


@rule(
    "HF021", "zone-without-pool", Severity.ERROR, on=Pod,
    what="The pod selects a zone in which no pool stands.",
    why="It stays Pending: the autoscaler only adds nodes in the pool's zones.",
    source="infra/environments", fix="select one of the environment's zones, or none", base="job-pod",
    bad="nodeSelector: {topology.kubernetes.io/zone: europe-west4-a}",
    good="nodeSelector: {topology.kubernetes.io/zone: us-central1-a}",
)  # fmt: skip
def zone_without_pool(pod: Pod, context: Context) -> Iterator[Hit]:
    for demand in context.place(pod).demanded(contract.LABEL_ZONE):
        if not set(demand.values) & set(context.platform.zones):
            fact = f"zones here: {', '.join(context.platform.zones)}"
            basis = context.platform.basis(context.platform.pools[0], fact)
            yield Hit(demand.path, f"no pool stands in {', '.join(demand.values)}", basis)


@rule(
    "HF023", "pool-of-limited-life-with-service", Severity.WARNING, on=Object,
    what="A Deployment or StatefulSet runs on Spot alone, without an on-demand base.",
    why="When Spot is sold out or taken away at once, nothing answers.",
    source="infra/placement: online -> hybrid", fix="keep a base on the serving pool, and let Spot take the overflow",
    bad="""\
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: vectors, namespace: serving}
spec:
  selector: {matchLabels: {app: vectors}}
  serviceName: vectors
  template:
    metadata: {labels: {app: vectors}}
    spec:
      nodeSelector: {cloud.google.com/gke-spot: "true", holdfast.dev/pool-class: spot-l4}
      tolerations: [{key: provisioning-tier, operator: Equal, value: preemptible, effect: NoSchedule}]
      containers: [{name: main, image: vectors}]
""",
    good="nodeSelector: {holdfast.dev/pool-class: serving}", base="serving-pod",
)  # fmt: skip
def service_on_spot_alone(obj: Object, context: Context) -> Iterator[Hit]:
    serving = obj.kind == "StatefulSet" or (obj.kind == "Deployment" and obj.namespace == "serving")
    for pod in obj.pods if serving else []:
        if context.place(pod).ties_to_spot and "holdfast.dev/overflow-of" not in as_map(
            obj.metadata.get("annotations")
        ):
            yield Hit((*pod.at, "nodeSelector"), f"{obj.kind} {obj.name} runs on Spot alone")
