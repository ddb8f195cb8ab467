"""What foreign manifests have and is right: each of these was once a false finding."""

import pytest

from holdfast.lint.engine import Options, lint_texts

HEAD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: team}\n"
DIGEST = "@sha256:" + "1" * 64


def found(*texts: str, names: tuple[str, ...] = ()) -> set[str]:
    files = dict(zip(names or tuple(f"{n}.yaml" for n in range(len(texts))), texts, strict=True))
    return {finding.rule for finding in lint_texts(files, Options()).active}


def pod(spec: str) -> str:
    return f"{HEAD}spec: {{containers: [{{name: m, image: registry.example/a{DIGEST}}}], {spec}}}\n"


OF_GKE = (
    "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology", "cloud.google.com/gke-local-nvme-ssd",
    "cloud.google.com/compute-class", "cloud.google.com/gke-ephemeral-storage-local-ssd",
    "cloud.google.com/gke-confidential-nodes", "iam.gke.io/gke-metadata-server-enabled",
    "node-role.kubernetes.io/control-plane", "cloud.google.com/gke-os-distribution", "projectcalico.org/ds-ready",
)  # fmt: skip
GOOGLES = ("nvidia-tesla-t4", "nvidia-h100-mega-80gb", "nvidia-h200-141gb", "nvidia-b200")
SWITCH = "env: [{name: MYSQL_ALLOW_EMPTY_PASSWORD, value: '1'}]"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f"{HEAD}spec: {{containers: [{{name: m, image: registry.example/a{DIGEST}, {SWITCH}}}]}}\n", "HF416"),
        (pod('tolerations: [{key: "group-{{ .Index }}", operator: Exists}]'), "HF002"),
        *((pod(f'nodeSelector: {{{key}: "x"}}'), "HF003") for key in OF_GKE),
        *((pod(f"nodeSelector: {{cloud.google.com/gke-accelerator: {name}}}"), "HF035") for name in GOOGLES),
        (f"%YAML 1.1\n---\n{HEAD}spec: {{}}\n", "HF904"),
        (f"%YAML 1.2\n%TAG ! tag:a.example,2000:\n---\n{HEAD}spec: {{}}\n...\n%YAML 1.2\n---\n{HEAD}spec: {{}}\n", "HF904"),
        ("kind: Job\n{% if x %}\n  a: [\n{% endif %}\n", "HF904"),
        ("kind: Job\nname: <%= name %>\n a: b\n", "HF904"),
    ],
)  # fmt: skip
def test_what_is_right_passes(text: str, rule: str) -> None:
    assert rule not in found(text)


@pytest.mark.parametrize(
    "key", ["cloud.google.com/gke-spto", "cloud.google.com/gke-accelerators", "holdfast.dev/pool-clas"]
)
def test_a_typo_of_a_label_that_decides_is_found_all_the_same(key: str) -> None:
    assert "HF003" in found(pod(f'nodeSelector: {{{key}: "true"}}'))


SPOT_RULES = {"HF101", "HF102", "HF103", "HF106", "HF110", "HF113", "HF114", "HF302", "HF303"}


@pytest.mark.parametrize(
    "spec",
    [
        "terminationGracePeriodSeconds: 600",
        "terminationGracePeriodSeconds: 600, nodeSelector: {kubernetes.io/os: linux}, tolerations: [{operator: Exists}]",
        "nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}, tolerations: [{key: nvidia.com/gpu, operator: Exists}]",
        "nodeSelector: {cloud.google.com/compute-class: gpu}, terminationGracePeriodSeconds: 120",
    ],
)
def test_a_pod_that_never_mentions_spot_is_not_judged_by_its_rules(spec: str) -> None:
    job = (
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a, namespace: team}\nspec:\n  backoffLimit: 3\n  template:\n"
    )
    main = "{name: m, image: a, command: [sh, -c, 'a; b']}"
    assert not found(f"{job}    spec: {{restartPolicy: OnFailure, containers: [{main}], {spec}}}\n") & SPOT_RULES


@pytest.mark.parametrize(
    "spec",
    [
        "nodeSelector: {holdfast.dev/pool-class: spot-l4s}",
        "tolerations: [{key: provisioning-teir, operator: Equal, value: preemptible, effect: NoSchedule}]",
        'tolerations: [{key: spot, operator: Equal, value: "true", effect: NoSchedule}]',
    ],
)
def test_a_grace_beyond_the_window_is_not_hidden_behind_another_error(spec: str) -> None:
    assert "HF101" in found(pod(f"terminationGracePeriodSeconds: 25, {spec}"))


PATCH = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: a}
spec:
  template:
    spec:
      terminationGracePeriodSeconds: 25
      nodeSelector: {cloud.google.com/gke-spot: "true"}
      containers: [{name: m, resources: {limits: {nvidia.com/gpu: "1"}}}]
"""


def test_a_patch_is_judged_by_what_stands_in_it_and_not_by_what_its_base_has() -> None:
    rules = found(PATCH)
    assert not rules & {"HF030", "HF102", "HF036"} and "HF101" in rules


@pytest.mark.parametrize("field", ["patches: [{path: p/a.yaml}]", "patchesStrategicMerge: [p/a.yaml]"])
def test_a_file_that_a_kustomization_names_is_a_patch(field: str) -> None:
    kustomization = f"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n{field}\n"
    positive = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: spot}\nvalue: 5\n"
    assert "HF305" not in found(kustomization, positive, names=("over/kustomization.yaml", "over/p/a.yaml"))
    assert "HF305" in found(kustomization, positive, names=("over/kustomization.yaml", "over/a.yaml"))


@pytest.mark.parametrize(
    ("service", "ended"), [("", True), ("clusterIP: None, publishNotReadyAddresses: true, ", False)]
)
def test_a_service_that_only_names_peers_asks_for_no_readiness(service: str, ended: bool) -> None:
    labelled = HEAD.replace("namespace: team", "namespace: team, labels: {app: a}")
    spot = f"nodeSelector: {{cloud.google.com/gke-spot: 'true'}}, containers: [{{name: m, image: registry.example/a{DIGEST}}}]"
    serving = f"apiVersion: v1\nkind: Service\nmetadata: {{name: a, namespace: team}}\nspec: {{{service}selector: {{app: a}}}}\n"
    assert ("HF140" in found(f"{labelled}spec: {{{spot}}}\n", serving)) is ended


def test_gke_adds_the_toleration_of_the_gpu_taint() -> None:
    gpu = "image: a, resources: {limits: {nvidia.com/gpu: 1}}"
    chosen = (
        "nodeSelector: {holdfast.dev/pool-class: spot-l4}, tolerations: [{key: provisioning-tier, operator: Exists}]"
    )
    asks = found(f"{HEAD}spec: {{containers: [{{name: m, {gpu}}}], {chosen}}}\n")
    assert not asks & {"HF004", "HF031", "HF003"}


def test_fields_that_jobset_and_kubernetes_have_got_since_are_left_to_their_schemas() -> None:
    jobset = (
        "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: a}\nspec:\n"
        "  volumeClaimPolicies: [{templates: [{metadata: {name: v}, spec: {accessModes: [ReadWriteOnce]}}]}]\n"
        "  ttlSecondsAfterFinished: 60\n  replicatedJobs: [{name: w, template: {spec: {activeDeadlineSeconds: 60,"
        " template: {spec: {restartPolicy: Never, containers: [{name: m, image: a, restartPolicy: Never,"
        " restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}],"
        " volumeMounts: [{name: v, mountPath: /v}]}]}}}}}]\n"
    )
    assert found(jobset) == set()
