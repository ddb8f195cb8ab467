"""A gang as Kubeflow Trainer takes it: a runtime, a TrainJob, and the JobSet of both."""

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from holdfast.clients.api import Object
from holdfast.cost import prices
from holdfast.jobs.file import file_text
from holdfast.jobs.plan import any_gpu
from holdfast.jobs.render import kubeflow, manifests
from holdfast.jobs.submit import prepared_job
from holdfast.manifests.render_context import RenderContext, yaml_text
from holdfast.support.errors import InputError
from holdfast.vocabulary.environment import ENV_CHECKPOINTS, ENV_WINDOW_S
from holdfast.vocabulary.kubernetes import ANNOTATION_SOURCE
from tests import support
from tests.platforms import load
from tests.tools.build import TOOLS
from workloads.library.tests.jobs.test_job_file import own
from workloads.library.tests.jobs.test_manifests import list_kinds, read_variables
from workloads.operators.catalogue import JOBSET

NAME = "holdfast-gang"
TRAINER_SCHEMAS = TOOLS["trainer"].binary.parent / "manifests/base/crds"


def render(**fields: Any) -> list[Object]:
    env = load("example")
    gang = {
        "gpus": "4xa100",
        "nodes": 2,
        "capacity": "spot",
    }
    job = own(**{"name": NAME} | gang | fields)
    placed = any_gpu.place(job, env, prices.load())
    text = yaml_text(manifests.bodies(job, RenderContext(env), placed))
    return list(yaml.load_all(text, yaml.CSafeLoader))


def read_group(runtime: Object) -> Object:
    (group,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    return group


def read_container(runtime: Object) -> Object:
    (container,) = read_group(runtime)["template"]["spec"]["template"]["spec"]["containers"]
    return container


def make_jobset(runtime: Object, train_job: Object) -> Object:
    """Returns the JobSet that Trainer creates, with the variables of its plugin for torch."""
    metadata = train_job["metadata"]
    template = copy.deepcopy(runtime["spec"]["template"])
    identity = {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
    }
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": identity | template["metadata"],
        "spec": template["spec"],
    }
    (group,) = jobset["spec"]["replicatedJobs"]
    pod_spec = group["template"]["spec"]["template"]["spec"]
    container = pod_spec["containers"][0]
    trainer = train_job["spec"]["trainer"]
    container["image"] = trainer["image"]
    container["args"] = trainer["args"]
    return jobset


def test_runtime_is_the_gang_with_our_launcher() -> None:
    objects = render()
    gang = objects[-1]
    (runtime,), (policy, budget, train_job) = kubeflow.convert(objects)
    spec = runtime["spec"]["template"]["spec"]
    assert spec["failurePolicy"] == gang["spec"]["failurePolicy"]
    job_spec = read_group(runtime)["template"]["spec"]
    rendered = gang["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job_spec["podFailurePolicy"] == rendered["podFailurePolicy"]
    for setting in ("nodeSelector", "tolerations", "terminationGracePeriodSeconds"):
        pod = rendered["template"]["spec"]
        assert job_spec["template"]["spec"][setting] == pod[setting]
    assert read_container(runtime)["command"] == [*kubeflow.LAUNCHER]
    trainer = train_job["spec"]["trainer"]
    assert trainer["args"] == ["python", "train.py"]
    assert trainer["numNodes"] == runtime["spec"]["mlPolicy"]["numNodes"] == 2
    selector = policy["spec"]["podSelector"]["matchLabels"]
    assert selector == {"jobset.sigs.k8s.io/jobset-name": train_job["metadata"]["name"]}
    assert budget["spec"]["selector"]["matchLabels"] == selector
    assert budget["spec"]["minAvailable"] == 1


@pytest.mark.parametrize(
    ("fields", "processes"),
    [
        ({}, 4),
        ({"gpus": "8xa100", "processes": 1}, 1),
        ({"gpus": "none"}, 1),
    ],
)
def test_train_job_states_its_processes(fields: dict[str, Any], processes: int) -> None:
    """Trainer would otherwise start a process for each GPU, or for each CPU."""
    _, (*_, train_job) = kubeflow.convert(render(**fields))
    assert train_job["spec"]["trainer"]["numProcPerNode"] == processes


def test_trainer_finds_its_group_and_its_container() -> None:
    """Trainer's webhook and its plugin for torch know the group of nodes by these names alone."""
    (runtime,), _ = kubeflow.convert(render())
    group = read_group(runtime)
    assert (group["name"], group["replicas"]) == ("node", 1)
    labels = group["template"]["metadata"]["labels"]
    assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert read_container(runtime)["name"] == "node"


def test_queue_belongs_to_the_train_job() -> None:
    """A queue on the JobSet would suspend it, and Trainer would start it again at once."""
    (runtime,), (*_, train_job) = kubeflow.convert(render(priority="high"))
    assert "queue-name" not in yaml_text([runtime])
    assert "suspend" not in runtime["spec"]["template"]["spec"]
    labels = train_job["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "spot"
    assert "kueue.x-k8s.io/priority-class" in labels
    assert train_job["spec"]["suspend"] is True


def test_variables_follow_the_train_job() -> None:
    """Kubernetes expands a variable only after the one that it refers to."""
    (runtime,), _ = kubeflow.convert(render())
    variables = read_container(runtime)["env"]
    assert variables[0]["name"] == "HOLDFAST_JOB"
    assert "jobset-name" in variables[0]["valueFrom"]["fieldRef"]["fieldPath"]
    values = read_variables(read_container(runtime))
    assert values["HOLDFAST_RUN"] == "$(HOLDFAST_JOB)"
    assert values["HOLDFAST_OUTPUT"].endswith("/$(HOLDFAST_JOB)/output")
    assert values["PET_MASTER_ADDR"] == "$(HOLDFAST_JOB)-node-0-0.$(HOLDFAST_JOB)"
    assert values[ENV_CHECKPOINTS].startswith("gs://")
    assert values[ENV_WINDOW_S] == "15"
    # Trainer sets the variables with the prefix alone: the others would contradict them.
    assert not {"NNODES", "NODE_RANK", "MASTER_ADDR"} & {*values}


def test_expanded_gang_passes_the_linter() -> None:
    (runtime,), (*rules, train_job) = kubeflow.convert(render())
    env = load("example")
    jobset = make_jobset(runtime, train_job)
    manifests.judge("gang.yaml", manifests.text(env.name, [*rules, jobset]), env)


@cache
def read_schemas(*files: Path) -> dict[str, Object]:
    schemas: dict[str, Object] = {}
    for file in files:
        for body in yaml.load_all(file.read_text(), yaml.CSafeLoader):
            if body and body["kind"] == "CustomResourceDefinition":
                versions = body["spec"]["versions"]
                version = next(version for version in versions if version["storage"])
                schemas[body["spec"]["names"]["kind"]] = close(version["schema"]["openAPIV3Schema"])
    return schemas


def close(schema: Any) -> Any:
    """Returns a schema that refuses unknown fields, as the API server does under Strict."""
    if isinstance(schema, list):
        return [close(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: close(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    is_open = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if (
        isinstance(schema.get("properties"), dict)
        and schema.get("type") == "object"
        and not is_open
    ):
        closed["additionalProperties"] = False
    return closed


def validate(body: Object, schemas: dict[str, Object]) -> None:
    schema = copy.copy(schemas[body["kind"]])
    # The API server knows the metadata of an object itself.
    schema["properties"] = schema["properties"] | {"metadata": {"type": "object"}}
    jsonschema.validate(body, schema)


def test_jobset_is_valid() -> None:
    (runtime,), (*_, train_job) = kubeflow.convert(render())
    schemas = read_schemas(JOBSET.file)
    jobset = make_jobset(runtime, train_job)
    validate(jobset, schemas)
    jobset["spec"]["failurePolicy"]["maxRestart"] = 3
    with pytest.raises(jsonschema.ValidationError, match="maxRestart"):
        validate(jobset, schemas)


def test_runtime_and_train_job_are_valid() -> None:
    files = sorted(TRAINER_SCHEMAS.glob("trainer.kubeflow.org_*.yaml"))
    support.require(bool(files), "`make tools` has not built trainer")
    schemas = read_schemas(*files)
    (runtime,), (*_, train_job) = kubeflow.convert(render())
    validate(runtime, schemas)
    validate(train_job, schemas)
    del train_job["spec"]["runtimeRef"]
    with pytest.raises(jsonschema.ValidationError, match="runtimeRef"):
        validate(train_job, schemas)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nodes": "2..4"}, "fixed size"),
        ({"sharded": True, "state": "60Gi"}, "fixed size"),
        ({"nodes": 1}, "fixed size"),
        ({"capacity": "queued"}, "does not queue a gang again"),
        (
            {
                "gpus": "1xl4",
                "capacity": "auto",
                "hours": 40.0,
                "deadline_hours": 60.0,
            },
            "nothing moves a TrainJob",
        ),
        ({"max_usd": 100.0}, "spends too much"),
        ({"command": ("torchrun", "train.py")}, "starts a process for each GPU itself"),
        ({"secrets": {"HF_TOKEN": "hf"}}, "no objects of one"),
    ],
)
def test_job_that_trainer_cannot_run_is_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        kubeflow.convert(render(**fields))


@pytest.mark.parametrize("on_notice", ["handles", "wrap"])
@pytest.mark.parametrize(
    "command",
    [
        "/opt/venv/bin/torchrun train.py",
        "accelerate launch train.py",
        "python -m torch.distributed.run train.py",
        "/usr/bin/python3 -u -m torch.distributed.run train.py",
        "python -m holdfast train ranks --processes 4 -- python train.py",
        "holdfast train run -- python train.py",
    ],
)
def test_second_launcher_is_rejected(command: str, on_notice: str) -> None:
    with pytest.raises(InputError, match="starts a process for each GPU itself"):
        kubeflow.convert(render(command=tuple(command.split()), on_notice=on_notice))


@pytest.mark.parametrize("on_notice", ["handles", "wrap"])
@pytest.mark.parametrize(
    "command",
    [
        "python train.py --strategy deepspeed",
        "python train.py -m torch.distributed.run",
        "python -m trainer torchrun",
        "python -m my_trainer train run",
    ],
)
def test_word_among_the_arguments_is_no_launcher(command: str, on_notice: str) -> None:
    program = tuple(command.split())
    _, (*_, train_job) = kubeflow.convert(render(command=program, on_notice=on_notice))
    assert tuple(train_job["spec"]["trainer"]["args"][-len(program) :]) == program


def test_source_in_a_bucket_is_rejected() -> None:
    """It has no object in the cluster, and the runtime would name that of one job."""
    objects = render()
    objects[-1]["metadata"]["annotations"] = {ANNOTATION_SOURCE: "sha256:0"}
    with pytest.raises(InputError, match="no objects of one"):
        kubeflow.convert(objects)


def test_submit_writes_the_runtime_and_the_train_job_apart(tmp_path: Path) -> None:
    job = own(
        name=NAME,
        gpus="4xa100",
        nodes=2,
        capacity="spot",
    )
    file = tmp_path / "gang.yaml"
    file.write_text(file_text.dump(job))
    env = load("example")
    plan = prepared_job.plan(prepared_job.prepare(replace(job), env))
    prepared_job.write_train_job(plan, tmp_path / "out")
    kinds: dict[str, list[str]] = {}
    for path in sorted((tmp_path / "out").iterdir()):
        documents = yaml.load_all(path.read_text(), yaml.CSafeLoader)
        kinds[path.name] = list_kinds(list(documents))
    assert kinds == {
        f"{NAME}-runtime.yaml": ["ClusterTrainingRuntime"],
        f"{NAME}-trainjob.yaml": ["NetworkPolicy", "PodDisruptionBudget", "TrainJob"],
    }
