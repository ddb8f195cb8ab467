"""Tests of rendered training pods: tokens, failure policies, GPUs, names and identities."""

from dataclasses import replace

from holdfast.clients.api import Object
from holdfast.controllers.cluster_objects import parse_pod
from holdfast.manifests import training
from holdfast.manifests.render_context import RenderContext
from holdfast.support.values import quantity
from holdfast.vocabulary.environment import ENV_COMPLETION_INDEX, ENV_GPUS, ENV_NODE
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED, EXIT_RETRY, FATAL_EXIT_CODES
from holdfast.vocabulary.job_identity import JobIdentity
from holdfast.vocabulary.kubernetes import LABEL_QUEUE, PRIORITY_PLATFORM
from holdfast.vocabulary.lifecycle import FLEX_MAX_RUN_S
from holdfast.vocabulary.pools import LABEL_FLEX_START
from tests.platforms import load
from tests.workloads.manifests.rendered import (
    find_object,
    jobs,
    list_kinds,
    option,
    templates,
    trainers,
    variables,
    workloads,
)

GPU = "nvidia.com/gpu"


def test_pods_with_a_token_know_their_node(env: str) -> None:
    token_names: set[str] = set()
    flex_names: set[str] = set()
    for body, template in workloads(env):
        name = body["metadata"]["name"]
        entry = variables(template).get(ENV_NODE)
        assert (entry is not None) is template["spec"]["automountServiceAccountToken"], name
        if entry:
            assert entry["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
            token_names.add(name)
        if LABEL_FLEX_START in template["spec"].get("nodeSelector", {}):
            flex_names.add(name)
    assert flex_names
    assert token_names - {"proxy"} == flex_names | {"exporter", "mover"}


def test_only_flex_start_ends_what_works_after_seven_days(env: str) -> None:
    for body, spec in jobs(env):
        pod = spec["template"]["spec"]
        if pod["priorityClassName"] == PRIORITY_PLATFORM:
            continue  # it prepares the work of others, in minutes
        name = body["metadata"]["name"]
        is_queued = body["metadata"]["labels"].get(LABEL_QUEUE) == "queued"
        limit_s = FLEX_MAX_RUN_S if is_queued else 30 * 86_400
        assert spec["activeDeadlineSeconds"] == limit_s, name


def test_training_may_only_get_nodes(env: str) -> None:
    accounts: set[str] = set()
    for body, template in workloads(env):
        has_token = template["spec"]["automountServiceAccountToken"]
        if has_token and body["metadata"]["namespace"] == "training":
            accounts.add(template["spec"]["serviceAccountName"])
    assert accounts
    for account in accounts:
        (role,) = list_roles(env, account)
        (rule,) = find_object(env, "ClusterRole", role)["rules"]
        assert rule == {
            "apiGroups": [""],
            "resources": ["nodes"],
            "verbs": ["get"],
        }


def list_roles(env: str, account: str) -> list[str]:
    roles: list[str] = []
    for binding in list_kinds(env, "ClusterRoleBinding", "RoleBinding"):
        if account in [subject["name"] for subject in binding["subjects"]]:
            roles.append(binding["roleRef"]["name"])
    return roles


def test_only_pods_with_a_token_reach_the_api_server(env: str) -> None:
    namespaces: set[str] = set()
    for body, template in workloads(env):
        if template["spec"]["automountServiceAccountToken"]:
            namespaces.add(body["metadata"]["namespace"])
    for namespace in namespaces:
        policy = find_object(env, "NetworkPolicy", "api-server", namespace)
        labels = policy["spec"]["podSelector"]["matchLabels"]
        assert labels
        for body, template in workloads(env):
            if body["metadata"]["namespace"] == namespace:
                is_selected = labels.items() <= template["metadata"]["labels"].items()
                has_token = template["spec"]["automountServiceAccountToken"]
                assert is_selected is has_token, body["metadata"]["name"]


def test_orderly_stop_is_not_charged(env: str) -> None:
    indexed_jobs = 0
    for body, spec in jobs(env):
        if body["kind"] == "Job":
            eviction, bug, stop = spec["podFailurePolicy"]["rules"]
            assert eviction["action"] == stop["action"] == "Ignore"
            assert bug["action"] == "FailJob"
            assert eviction["onPodConditions"][0]["type"] == "DisruptionTarget"
            assert tuple(bug["onExitCodes"]["values"]) == FATAL_EXIT_CODES
            # An elastic pod that lost its gang made no error either.
            is_elastic = "successPolicy" in spec
            codes = [EXIT_RETRY, EXIT_PREEMPTED] if is_elastic else [EXIT_PREEMPTED]
            assert stop["onExitCodes"]["values"] == codes
            indexed_jobs += "backoffLimitPerIndex" in spec
    assert indexed_jobs >= 3


def test_gpu_pods_know_their_count_and_have_shared_memory(env: str) -> None:
    """Ensures that a process knows its number of GPUs.

    It then ends with an error on a node that has fewer, and never falls back to the CPU in silence.
    """
    gpu_pods = 0
    for _, template in workloads(env):
        (main,) = template["spec"]["containers"]
        gpus = main["resources"]["limits"].get(GPU)
        assert variables(template).get(ENV_GPUS, {}).get("value") == gpus
        mounts = [mount for mount in main["volumeMounts"] if mount["mountPath"] == "/dev/shm"]
        assert len(mounts) == (1 if gpus else 0)
        volumes = {}
        for volume in template["spec"]["volumes"]:
            volumes[volume["name"]] = volume
        for mount in mounts:
            directory = volumes[mount["name"]]["emptyDir"]
            assert directory["medium"] == "Memory"
            assert not mount.get("readOnly")
            memory = quantity(main["resources"]["limits"]["memory"])
            assert quantity(directory["sizeLimit"]) < memory
            gpu_pods += 1
    assert gpu_pods >= 5


def test_job_name_changes_with_the_image_but_not_the_run() -> None:
    """Ensures a new object for a new image, and the same run in the storage.

    The template of an applied Job is immutable.
    """
    old_jobs = render_jobs("0" * 64)
    new_jobs = render_jobs("1" * 64)
    assert old_jobs.keys() == render_jobs("0" * 64).keys()
    assert len(old_jobs) == len(new_jobs) >= 4
    assert not old_jobs.keys() & new_jobs.keys()
    assert list_runs(old_jobs) == list_runs(new_jobs)
    for name in new_jobs:
        assert len(f"{name}-workers-0-0-xxxxx") <= 63


def render_jobs(digest: str) -> dict[str, Object]:
    images = {"trainer": digest, "batch": "2" * 64}
    context = RenderContext(replace(load("example"), images=images))
    jobs: dict[str, Object] = {}
    for body in training.samples(context):
        if body["kind"] in ("Job", "JobSet"):
            jobs[body["metadata"]["name"]] = body
    return jobs


def list_runs(jobs: dict[str, Object]) -> list[str]:
    runs: list[str] = []
    for body in jobs.values():
        for template in templates(body):
            runs.append(option(template["spec"]["containers"][0]["command"], "--run"))
    return runs


def test_process_identity_matches_the_exporters_view(env: str) -> None:
    """Joins lines and pods by job and index, for gangs, sweeps and flex-start jobs alike."""
    indices: set[int | None] = set()
    for body, spec, command in trainers(env):
        entries = variables(spec["template"])
        environ = {}
        for name, entry in entries.items():
            environ[name] = entry.get("value", "")
        environ[ENV_COMPLETION_INDEX] = "1"
        run = option(command, "--run").replace(f"$({ENV_COMPLETION_INDEX})", "1")
        labels = spec["template"]["metadata"]["labels"] | {
            "batch.kubernetes.io/job-completion-index": "1"
        }
        pod = {
            "metadata": {
                "namespace": "training",
                "name": "p",
                "labels": labels,
            },
            "spec": {},
            "status": {},
        }
        # A line has no namespace: the exporter knows it from the pod that wrote the line.
        identity = JobIdentity.of_run(run, environ)
        assert replace(identity, namespace="training") == parse_pod(pod).identity
        assert identity.job == body["metadata"]["name"]
        indices.add(identity.index)
    assert indices == {None, 1}
