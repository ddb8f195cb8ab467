"""Turns the JobSet of a gang into a runtime of Kubeflow Trainer, and a TrainJob that refers to it.

The runtime is what the platform team installs once: placement, rules for evictions, and our
launcher. A TrainJob is what a user writes: image, program and number of nodes.
"""

# Why it is so: infra/decisions/0193.

import copy
from collections.abc import Sequence
from pathlib import PurePosixPath

from holdfast.jobs.render.pod_parts import WRAPPER
from holdfast.manifests.pods import MAIN
from holdfast.manifests.policies import peers
from holdfast.manifests.render_context import Body
from holdfast.manifests.render_context import templates as list_templates
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import ANNOTATION_MAX_USD, LABEL_MOVES, LABEL_REQUEUES
from holdfast.vocabulary.environment import ENV_JOB, ENV_OUTPUT, ENV_RUN
from holdfast.vocabulary.job_identity import LABEL_HOLDFAST_JOB
from holdfast.vocabulary.kubernetes import (
    ANNOTATION_SOURCE,
    LABEL_GANG,
    LABEL_JOB_PRIORITY,
    LABEL_JOBSET,
    LABEL_NAME,
    LABEL_PART_OF,
    LABEL_QUEUE,
)

TRAINER_API = "trainer.kubeflow.org/v1alpha1"
LABEL_FRAMEWORK = "trainer.kubeflow.org/framework"
LABEL_ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
NODE = "node"
"""Name that Trainer requires of the group of pods, and of its container."""
LAUNCHER = ("python", "-m", "holdfast", "train", "ranks", "--torchrun", "--")
OTHER_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun")
LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
)
QUEUE_LABELS = (LABEL_QUEUE, LABEL_JOB_PRIORITY)
JOB = f"$({ENV_JOB})"
# Trainer changes the variables with the prefix PET_ alone.
FIXED_VARIABLES = ("NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


def convert(objects: Sequence[Body]) -> tuple[list[Body], list[Body]]:
    """Return the runtime, and the objects of one TrainJob, from the rendered objects of a gang.

    Raises InputError for what Trainer cannot run as the job does.
    """
    jobset = objects[-1]
    _require_plain_gang(objects)
    name = _find_label(jobset, LABEL_NAME)
    namespace = jobset["metadata"]["namespace"]
    spec = copy.deepcopy(jobset["spec"])
    # Trainer writes `suspend` of the TrainJob into it.
    spec.pop("suspend", None)
    (group,) = spec["replicatedJobs"]
    job_spec = group["template"]["spec"]
    nodes = job_spec["parallelism"]
    group["name"] = NODE
    group["template"] = {"metadata": {"labels": {LABEL_ANCESTOR: "trainer"}}, "spec": job_spec}
    pod = job_spec["template"]
    for label in (LABEL_HOLDFAST_JOB, LABEL_GANG):
        # The name of the TrainJob, which a template does not know.
        del pod["metadata"]["labels"][label]
    container = _find_main(pod["spec"]["containers"])
    program = container["command"]
    _require_no_launcher(program)
    processes = _find_processes(container["env"])
    container["name"] = NODE
    container["command"] = [*LAUNCHER]
    container["env"] = _convert_variables(container["env"], name)
    runtime: Body = {
        "apiVersion": TRAINER_API,
        "kind": "ClusterTrainingRuntime",
        "metadata": {
            "name": name,
            "labels": {
                LABEL_FRAMEWORK: "torch",
                LABEL_PART_OF: _find_label(jobset, LABEL_PART_OF),
            },
        },
        "spec": {
            "mlPolicy": {"numNodes": nodes, "torch": {}},
            "template": {"metadata": {"labels": _list_labels(jobset)}, "spec": spec},
        },
    }
    trainer = {
        "image": container["image"],
        "args": [*program],
        "numNodes": nodes,
        "numProcPerNode": processes,
    }
    return [runtime], [
        _make_peers(name, namespace),
        _make_budget(objects, name),
        _make_train_job(jobset, name, trainer),
    ]


def _require_plain_gang(objects: Sequence[Body]) -> None:
    jobset = objects[-1]
    templates = [] if jobset["kind"] != "JobSet" else list_templates(jobset["spec"])
    labels = [template["metadata"].get("labels", {}) for template in templates]
    if len(labels) != 1 or LABEL_GANG not in labels[0]:
        raise InputError(
            "Kubeflow Trainer starts gangs of a fixed size",
            got=f"the {jobset['kind']} {jobset['metadata']['name']}",
            allowed="a job of several nodes, without a range and without sharded",
            fix="nodes: 2",
        )
    metadata = jobset["metadata"]
    # The mover would act on the JobSet, and Trainer would put it back.
    if LABEL_REQUEUES in metadata["labels"]:
        raise InputError(
            "capacity: Trainer does not queue a gang again",
            got="queued",
            allowed="spot or on-demand",
            fix="capacity: spot",
        )
    if LABEL_MOVES in metadata["labels"]:
        raise InputError(
            "deadline_hours: nothing moves a TrainJob to other machines in time",
            got="a plan that moves the gang",
            allowed="a gang that stays on its machines",
            fix="leave deadline_hours out",
        )
    if ANNOTATION_MAX_USD in metadata.get("annotations", {}):
        raise InputError(
            "max_usd: nothing stops a TrainJob that spends too much",
            got="a limit",
            allowed="none",
            fix="leave it out, and set activeDeadlineSeconds in the TrainJob",
        )
    kinds = {body["kind"] for body in objects[:-1]}
    foreign = sorted(kinds - {"NetworkPolicy", "PodDisruptionBudget"})
    if ANNOTATION_SOURCE in metadata.get("annotations", {}):
        foreign.append("source")
    if foreign:
        raise InputError(
            "a runtime serves many jobs, so it has no objects of one",
            got=", ".join(foreign),
            allowed="a job without source, secrets and sweep",
            fix="put the program into the image",
        )


def _find_main(containers: Sequence[Body]) -> Body:
    return next(container for container in containers if container["name"] == MAIN)


def _require_no_launcher(program: Sequence[str]) -> None:
    if WRAPPER in program:
        # The shell script and its name come before the program.
        program = program[program.index(WRAPPER) + 2 :]
    launcher = _find_launcher(program)
    if launcher:
        raise InputError(
            "command: the runtime starts a process for each GPU itself",
            got=launcher,
            allowed="the program of one process",
            fix="python train.py",
        )


def _find_launcher(program: Sequence[str]) -> str:
    """Return the name of the launcher that a program is, or nothing."""
    name = PurePosixPath(program[0]).name
    arguments = program[1:]
    if name.startswith("python"):
        name, arguments = _find_module(arguments)
    if name == "holdfast" and tuple(arguments[:2]) in (("train", "run"), ("train", "ranks")):
        return f"holdfast train {arguments[1]}"
    return name if name in (*OTHER_LAUNCHERS, *LAUNCHER_MODULES) else ""


def _find_module(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the module that Python runs, and its arguments; no name if it runs a file."""
    for index, argument in enumerate(arguments):
        if argument == "-m":
            following = arguments[index + 1 :]
            return (following[0], following[1:]) if following else ("", ())
        if not argument.startswith("-"):
            break
    return "", ()


def _list_labels(jobset: Body) -> dict[str, str]:
    """Return the labels of the JobSet without those that Kueue reads from the TrainJob.

    A queue on the JobSet would suspend it, and Trainer would start it again at once.
    """
    labels: dict[str, str] = {}
    for label, value in jobset["metadata"]["labels"].items():
        if label not in QUEUE_LABELS:
            labels[label] = value
    return labels


def _find_label(body: Body, label: str) -> str:
    return body["metadata"]["labels"][label]


def _find_processes(variables: Sequence[Body]) -> int:
    """Return the number of processes of a node.

    Trainer replaces the variable: if the TrainJob has no number, by one process for each GPU, or
    for each CPU.
    """
    return next(
        int(variable["value"]) for variable in variables if variable["name"] == "PET_NPROC_PER_NODE"
    )


def _convert_variables(variables: Sequence[Body], name: str) -> list[Body]:
    """Return the variables of the container with the name of the TrainJob as that of the job.

    Kubernetes expands a reference only if the variable is listed before.
    """
    field = {"fieldRef": {"fieldPath": f"metadata.labels['{LABEL_JOBSET}']"}}
    converted: list[Body] = [{"name": ENV_JOB, "valueFrom": field}]
    for variable in variables:
        if variable["name"] == ENV_JOB or variable["name"] in FIXED_VARIABLES:
            continue
        value = variable.get("value", "")
        if variable["name"] == ENV_RUN:
            value = JOB
        elif variable["name"] == ENV_OUTPUT:
            folders = value.split("/")
            value = "/".join(JOB if folder == name else folder for folder in folders)
        elif variable["name"] == "PET_MASTER_ADDR":
            value = f"{JOB}-{NODE}-0-0.{JOB}"
        converted.append(variable | {"value": value} if value else variable)
    return converted


def _make_peers(name: str, namespace: str) -> Body:
    """Open the pods of the TrainJob to each other, by the label that JobSet gives them."""
    body = peers(name, namespace)
    labels = {LABEL_JOBSET: name}
    body["spec"]["podSelector"] = {"matchLabels": {**labels}}
    for rules, side in (("ingress", "from"), ("egress", "to")):
        for rule in body["spec"][rules]:
            rule[side] = [{"podSelector": {"matchLabels": {**labels}}}]
    return body


def _make_budget(objects: Sequence[Body], name: str) -> Body:
    """Return the gang's budget, over the pods of the TrainJob."""
    budget = next(body for body in objects if body["kind"] == "PodDisruptionBudget")
    body = copy.deepcopy(budget)
    body["spec"]["selector"] = {"matchLabels": {LABEL_JOBSET: name}}
    return body


def _make_train_job(jobset: Body, name: str, trainer: Body) -> Body:
    """Build the TrainJob. Kueue reads its queue and its priority, and not those of the JobSet."""
    labels = {LABEL_NAME: name, LABEL_PART_OF: _find_label(jobset, LABEL_PART_OF)}
    for label in QUEUE_LABELS:
        if label in jobset["metadata"]["labels"]:
            labels[label] = _find_label(jobset, label)
    return {
        "apiVersion": TRAINER_API,
        "kind": "TrainJob",
        "metadata": {
            "name": name,
            "namespace": jobset["metadata"]["namespace"],
            "labels": labels,
        },
        "spec": {
            "runtimeRef": {"name": name},
            "suspend": LABEL_QUEUE in labels,
            "trainer": trainer,
        },
    }
