"""Training pods: planned ends on flex-start, ranks from the machine, Jobs that their queues can
admit.
"""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.controllers.cluster_objects import read_pod
from holdfast.manifests import training
from holdfast.manifests.render_context import RenderContext
from holdfast.support.values import quantity
from holdfast.vocabulary.environment import ENV_COMPLETION_INDEX, ENV_GPUS, ENV_NODE
from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED, EXIT_RETRY, FATAL_EXIT_CODES
from holdfast.vocabulary.job_identity import JobIdentity
from holdfast.vocabulary.pools import LABEL_FLEX_START
from tests.platforms import load
from tests.workloads.manifests.rendered import (
    bodies,
    jobs,
    named,
    option,
    templates,
    trainers,
    variables,
    workloads,
)

GPU = "nvidia.com/gpu"


def test_a_pod_may_ask_for_its_node_exactly_where_it_holds_a_token(env: str) -> None:
    holders = set()
    for body, template in workloads(env):
        may = template["spec"]["automountServiceAccountToken"]
        entry = variables(template).get(ENV_NODE)
        assert (entry is not None) is may, body["metadata"]["name"]
        if entry:
            assert entry["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
            holders.add(body["metadata"]["name"])
    flex = set()
    for b, t in workloads(env):
        if LABEL_FLEX_START in t["spec"].get("nodeSelector", {}):
            flex.add(b["metadata"]["name"])
    assert flex and holders - {"proxy", "vllm-proxy"} == flex | {"exporter", "mover"}


def test_who_trains_may_get_nodes_and_nothing_else(env: str) -> None:
    bindings = [b for b in bodies(env) if b["kind"] in ("ClusterRoleBinding", "RoleBinding")]
    accounts = set()
    for body, template in workloads(env):
        if (
            body["metadata"]["namespace"] == "training"
            and template["spec"]["automountServiceAccountToken"]
        ):
            accounts.add(template["spec"]["serviceAccountName"])
    roles = {}
    for a in accounts:
        roles[a] = [b["roleRef"]["name"] for b in bindings for s in b["subjects"] if s["name"] == a]
    ((role,),) = {tuple(bound) for bound in roles.values()}
    assert named(env, "ClusterRole", role)["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["nodes"],
            "verbs": ["get"],
        }
    ]


def test_only_pods_with_a_token_reach_the_api_server(env: str) -> None:
    for namespace in {
        b["metadata"]["namespace"]
        for b, t in workloads(env)
        if t["spec"]["automountServiceAccountToken"]
    }:
        labels = named(env, "NetworkPolicy", "api-server", namespace)["spec"]["podSelector"][
            "matchLabels"
        ]
        for body, template in workloads(env):
            if body["metadata"]["namespace"] == namespace:
                chosen = labels.items() <= template["metadata"]["labels"].items()
                assert labels and chosen is template["spec"]["automountServiceAccountToken"], body[
                    "metadata"
                ]["name"]


def test_an_orderly_stop_before_the_planned_end_is_not_charged(env: str) -> None:
    seen = 0
    for body, spec in jobs(env):
        if body["kind"] == "Job":
            first, bugs, stopped = spec["podFailurePolicy"]["rules"]
            assert (first["action"], bugs["action"], stopped["action"]) == (
                "Ignore",
                "FailJob",
                "Ignore",
            )
            assert first["onPodConditions"][0]["type"] == "DisruptionTarget"
            assert tuple(bugs["onExitCodes"]["values"]) == FATAL_EXIT_CODES
            # A lost gang of its own is no fault of an elastic pod either.
            elastic = "successPolicy" in spec
            assert stopped["onExitCodes"]["values"] == (
                [EXIT_RETRY, EXIT_PREEMPTED] if elastic else [EXIT_PREEMPTED]
            )
            seen += "backoffLimitPerIndex" in spec
    assert seen >= 3


def test_pods_with_gpus_know_their_number_and_have_shared_memory(env: str) -> None:
    """With the number it ends with an error on a node that shows fewer, and never computes on the
    CPU in silence.
    """
    seen = 0
    for _, template in workloads(env):
        (main,) = template["spec"]["containers"]
        gpus = main["resources"]["limits"].get(GPU)
        assert variables(template).get(ENV_GPUS, {}).get("value") == gpus
        mounts = [m for m in main["volumeMounts"] if m["mountPath"] == "/dev/shm"]
        assert len(mounts) == (1 if gpus else 0)
        for mount in mounts:
            (volume,) = (v for v in template["spec"]["volumes"] if v["name"] == mount["name"])
            assert volume["emptyDir"]["medium"] == "Memory" and not mount.get("readOnly")
            assert quantity(volume["emptyDir"]["sizeLimit"]) < quantity(
                main["resources"]["limits"]["memory"]
            )
            seen += 1
    assert seen >= 5


def test_a_jobs_name_changes_with_its_image_and_its_run_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An applied Job's template is immutable: a new digest must be a new object, and the same run
    in the storage.
    """

    def rendered(digest: str) -> dict[str, dict[str, Any]]:
        images = {"trainer": digest, "batch": "2" * 64}
        made = training.samples(RenderContext(replace(load("example"), images=images)))
        return {
            body["metadata"]["name"]: body for body in made if body["kind"] in ("Job", "JobSet")
        }

    old = rendered("0" * 64)
    again = rendered("0" * 64)
    new = rendered("1" * 64)
    assert old.keys() == again.keys() and len(old) == len(new) >= 4
    assert not old.keys() & new.keys()
    assert runs(old) == runs(new)
    assert all(len(f"{name}-workers-0-0-xxxxx") <= 63 for name in new)


def runs(found: dict[str, dict[str, Any]]) -> list[str]:
    return [
        option(t["spec"]["containers"][0]["command"], "--run")
        for body in found.values()
        for t in templates(body)
    ]


def test_what_a_rendered_process_writes_of_itself_is_what_the_exporter_reads_of_its_pod(
    env: str,
) -> None:
    """Lines join pods by job and index, for gangs, sweeps and flex-start jobs alike."""
    kinds: set[int | None] = set()
    for body, spec, command in trainers(env):
        environ = {}
        for name, entry in variables(spec["template"]).items():
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
        # A line does not state its namespace: the exporter knows it from where the line came.
        identity = JobIdentity.of_run(run, environ)
        assert (
            replace(identity, namespace="training") == read_pod(pod).identity
            and identity.job == body["metadata"]["name"]
        )
        kinds.add(identity.index)
    assert kinds == {None, 1}
