"""HF32x and HF861: ComputeClasses, which name several capacities in order of preference."""

from collections.abc import Iterator
from typing import Any

from holdfast.lint.document import Path
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object, Pod, as_int, as_list, as_map, as_maps, as_text, dig
from holdfast.lint.platform import find_machines
from holdfast.lint.registry import Context, rule
from holdfast.vocabulary.kubernetes import DRIVER_LATEST
from holdfast.vocabulary.machines import MACHINE_TYPES

DOC_CLASS = "https://cloud.google.com/kubernetes-engine/docs/concepts/about-custom-compute-classes"
API = "GoogleCloudPlatform/compute-class-api api/cloud.google.com/v1/types.go"
MACHINES = "holdfast/vocabulary/machines.py"


def _class(*priorities: str) -> str:
    items = "\n".join(f"  - {{{priority}}}" for priority in priorities)
    return f"""\
apiVersion: cloud.google.com/v1
kind: ComputeClass
metadata: {{name: gpu}}
spec:
  nodePoolAutoCreation: {{enabled: true}}
  whenUnsatisfiable: DoNotScaleUp
  priorities:
{items}
"""


_G2 = "machineType: g2-standard-8"
_ON_DEMAND = f"{_G2}, gpu: {{type: nvidia-l4, count: 1, driverVersion: latest}}"
_SPOT = f"{_ON_DEMAND}, spot: true"
_CLEAN = _class(_SPOT, _SPOT.replace("standard-8", "standard-12"), _ON_DEMAND)


def _priorities(obj: Object) -> list[tuple[Path, dict[str, Any]]]:
    if obj.kind != "ComputeClass":
        return []
    priorities: list[tuple[Path, dict[str, Any]]] = []
    for index, priority in enumerate(as_list(obj.spec.get("priorities"))):
        priorities.append((("spec", "priorities", index), as_map(priority)))
    return priorities


@rule(
    "HF320",
    "machine-has-other-gpus",
    Severity.ERROR,
    on=Object,
    what="A priority asks for a GPU count or type that its machine type does not have.",
    why="A machine type fixes its GPUs: g2-standard-8 has one L4, two L4 need g2-standard-24.",
    source=MACHINES,
    fix="use a machine type that has them",
    bad=_class(f"{_G2}, gpu: {{type: nvidia-l4, count: 2}}, spot: true", _ON_DEMAND),
    good=_CLEAN,
)
def machine_has_other_gpus(obj: Object, context: Context) -> Iterator[Hit]:
    for path, priority in _priorities(obj):
        machine = MACHINE_TYPES.get(as_text(priority.get("machineType")))
        count = dig(priority, "gpu", "count")
        kind = dig(priority, "gpu", "type")
        if machine is None or not isinstance(priority.get("gpu"), dict):
            continue
        if (as_int(count) or 1) != machine.gpus or kind not in (None, machine.accelerator):
            basis = f"{machine.name} has {machine.gpus} x {machine.accelerator or 'no GPU'}"
            fitting_machines = find_machines(kind, count)
            fix = f"use {' or '.join(fitting_machines)}" if fitting_machines else ""
            yield Hit((*path, "gpu"), f"{machine.name} with {count} x {kind}", basis, fix)


@rule(
    "HF323",
    "class-without-fallback",
    Severity.WARNING,
    on=Object,
    what="A ComputeClass has Spot as its only priority.",
    why="One machine type sells out long before all do. Without a next priority its pods wait.",
    source=DOC_CLASS,
    fix="add machine types, then flex-start or on-demand",
    bad=_class(_SPOT),
    good=_CLEAN,
)
def class_without_fallback(obj: Object, context: Context) -> Iterator[Hit]:
    priorities = _priorities(obj)
    if len(priorities) == 1 and priorities[0][1].get("spot") is True:
        yield Hit(("spec", "priorities"), "has no fallback")


@rule(
    "HF326",
    "class-leaves-driver-to-chance",
    Severity.WARNING,
    on=Object,
    what="A priority with GPUs does not state the newest driver.",
    why=(
        "A priority inherits no driver, and Google's default branch ends at CUDA 12: a program"
        " built for CUDA 13 sees no GPU on such a node and pays for one."
    ),
    source=API,
    fix=f"set gpu.driverVersion: {DRIVER_LATEST} on every priority",
    bad=_class(_SPOT, f"{_G2}, gpu: {{type: nvidia-l4, count: 1}}"),
    good=_CLEAN,
)
def class_leaves_driver(obj: Object, context: Context) -> Iterator[Hit]:
    for path, priority in _priorities(obj):
        gpu = priority.get("gpu")
        if isinstance(gpu, dict) and gpu.get("driverVersion") != DRIVER_LATEST:
            yield Hit((*path, "gpu"), "installs the default driver")


def _write_small(cpu: int) -> str:
    return f"""\
apiVersion: cloud.google.com/v1
kind: ComputeClass
metadata:
  name: small
spec:
  nodePoolAutoCreation:
    enabled: true
  whenUnsatisfiable: DoNotScaleUp
  priorities:
  - machineType: n2-standard-8
    spot: true
  - machineType: n2-standard-8
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: api
  namespace: research
spec:
  selector:
    matchLabels:
      app: api
  template:
    metadata:
      labels:
        app: api
    spec:
      nodeSelector:
        cloud.google.com/compute-class: small
      containers:
      - name: api
        image: registry.example/api:1.4
        resources:
          requests:
            cpu: {cpu}
"""


@rule(
    "HF861",
    "larger-than-its-class",
    Severity.ERROR,
    on=Pod,
    what="A pod asks for more CPU, memory or GPUs than any machine of its ComputeClass has.",
    why="No priority fits: the pod stays Pending.",
    source=DOC_CLASS,
    fix="ask for less, or add a larger machine to the class",
    bad=_write_small(16),
    good=_write_small(4),
)
def check_class_machines(pod: Pod, context: Context) -> Iterator[Hit]:
    for demand in context.place(pod).find_demands("cloud.google.com/compute-class"):
        classes = context.index.find_all("ComputeClass", demand.values[0])
        priorities = as_maps(classes[0].spec.get("priorities")) if len(classes) == 1 else []
        machines = [MACHINE_TYPES.get(as_text(item.get("machineType"))) for item in priorities]
        sizes = [machine for machine in machines if machine is not None]
        if not sizes or len(sizes) < len(machines):
            continue
        limits = {
            "cpu": max(machine.vcpus for machine in sizes),
            "memory": max(machine.memory_gib for machine in sizes) * 2**30,
            "nvidia.com/gpu": max(machine.gpus for machine in sizes),
        }
        for resource, size in limits.items():
            request = pod.request(resource)
            if request > size:
                unit = 2**30 if resource == "memory" else 1
                message = f"asks for {request / unit:g} of {resource}, of {size / unit:g} at most"
                yield Hit(demand.path, message)
