"""Defects of the linter's own field that it once passed are found, and what is right in foreign manifests passes."""

import pytest

from holdfast.lint.engine import Options, lint_texts
from holdfast.lint.pages import example_text
from holdfast.lint.registry import all_rules
from workloads.library.tests.lint import defects
from workloads.library.tests.lint.defects import SINGLE, found, found_in, pre_stop

HEAD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: team}\n"


def pod(spec: str) -> str:
    return f"{HEAD}spec: {{containers: [{{name: m, image: a}}], {spec}}}\n"


OF_GKE = (
    "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology", "cloud.google.com/gke-local-nvme-ssd",
    "cloud.google.com/compute-class", "cloud.google.com/gke-ephemeral-storage-local-ssd",
    "cloud.google.com/gke-confidential-nodes", "iam.gke.io/gke-metadata-server-enabled",
    "node-role.kubernetes.io/control-plane", "cloud.google.com/gke-os-distribution", "projectcalico.org/ds-ready",
)  # fmt: skip
GOOGLES = ("nvidia-tesla-t4", "nvidia-h100-mega-80gb", "nvidia-h200-141gb", "nvidia-b200")
SWITCH = "env: [{name: MYSQL_ALLOW_EMPTY_PASSWORD, value: '1'}]"


@pytest.mark.parametrize(("base", "change", "expected"), SINGLE)
def test_a_seeded_defect_is_found(base: str, change: str, expected: str) -> None:
    assert expected in found_in(base, change)


@pytest.mark.parametrize(
    ("base", "change", "passed"),
    [
        ("container", pre_stop("sleep", "2"), "HF103"),
        ("container", 'command: [bash, -c, "cleanup() { save; exit 143; }; trap cleanup TERM; python t.py"]', "HF105"),
        ("container", 'command: [bash, -c, "done() { exit 0; }; trap cleanup TERM; python t.py"]', "HF105"),
        ("container", pre_stop("python", "-m", "holdfast.runtime.drain"), "HF108"),
        ("container", "command: [python, t.py, --checkpoint-interval, '100', --checkpoint, org/model]", "HF201"),
        ("container", "command: [python, t.py, --checkpoint-dir, gs://bucket/run]", "HF201"),
        ("container", "command: [torchrun, --nnodes=1:4, t.py]", "HF122"),
        ("container", "command: [torchrun, --nnodes=2, t.py]", "HF122"),
        ("container", pre_stop("sh", "-c", "sleep 2 # sleep 20"), "HF103"),
        ("container", pre_stop("python", "-m", "wait", "--for", "x", "--sleep", "20"), "HF103"),
        ("container", pre_stop("sh", "-c", "kubectl wait --for=delete pod/a; sleep 1"), "HF103"),
        ("container", "command: [sh, -c, \"trap 'save; exit' TERM; python t.py & wait\"]", "HF105"),
        ("container", "command: [bash, -c, \"trap 'exit' TERM; python t.py & wait\"]", "HF105"),
        ("container", 'command: [sh, -c, "set -e\\npython t.py\\nrm x || true"]', "HF109"),
        ("container", 'command: [sh, -c, "python t.py; exit $?"]', "HF109"),
        ("job-pod", "volumes: [{name: tmp, emptyDir: {sizeLimit: 8Gi, medium: Memory}}]", "HF207"),
        ("container", "command: [python, -m, holdfast, batch, run, --window, '10']", "HF107"),
        ("container", "command: [python, train.py, --window, '512']", "HF107"),
        ("container", "command: [torchrun, --nproc-per-node=gpu, t.py]", "HF125"),
        ("jobset-job", "template: {spec: {containers: [{name: m, image: a, command: [t, --rdzv-endpoint, etcd-0.etcd:1]}]}}", "HF126"),
        ("job", "metadata: {name: null, generateName: a-}\nspec: {template: {spec: {containers: [{name: m, image: a, env: [{name: HOLDFAST_JOB, value: b}]}]}}}", "HF127"),
        ("serving-container", "command: [vllm, serve, m, --shutdown-timeout, '50']", "HF145"),
        ("job", "spec: {parallelism: 4, completions: 8, template: {spec: {containers: [{name: m, image: a, command: [torchrun, --nnodes=4, t.py]}]}}}", "HF122"),
        ("", f"{HEAD}spec: {{containers: [{{name: m, image: a, {SWITCH}}}]}}\n", "HF416"),
        ("", pod('tolerations: [{key: "group-{{ .Index }}", operator: Exists}]'), "HF002"),
        *(("", pod(f'nodeSelector: {{{key}: "x"}}'), "HF003") for key in OF_GKE),
        *(("", pod(f"nodeSelector: {{cloud.google.com/gke-accelerator: {name}}}"), "HF035") for name in GOOGLES),
        ("", f"%YAML 1.1\n---\n{HEAD}spec: {{}}\n", "HF904"),
        ("", f"%YAML 1.2\n%TAG ! tag:a.example,2000:\n---\n{HEAD}spec: {{}}\n...\n%YAML 1.2\n---\n{HEAD}spec: {{}}\n", "HF904"),
        ("", "kind: Job\n{% if x %}\n  a: [\n{% endif %}\n", "HF904"),
        ("", "kind: Job\nname: <%= name %>\n a: b\n", "HF904"),
    ],
)  # fmt: skip
def test_what_is_right_passes(base: str, change: str, passed: str) -> None:
    assert passed not in found_in(base, change)


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
    spot = "nodeSelector: {cloud.google.com/gke-spot: 'true'}, containers: [{name: m, image: a}]"
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


@pytest.mark.parametrize(
    "script",
    ["for i in 1 2; do sleep 1; done", "date; until test -f /a; do sleep 1; done", "sleep $GRACE", 'sleep "$N"'],
)
def test_a_sleep_that_the_script_does_not_state_is_said_to_be_unknown(script: str) -> None:
    rule = all_rules()["HF103"]
    text = example_text(rule, pre_stop("sh", "-c", script))
    (finding,) = lint_texts({"a.yaml": text}, Options()).active
    assert finding.rule == "HF103" and "cannot tell how long" in finding.message


def test_the_rendered_manifests_are_clean() -> None:
    assert defects.clean().active == []


@pytest.mark.parametrize(
    ("seeded", "count", "goal"), [(defects.JOBS, 40, 38), (defects.REST, 55, 49)], ids=["jobs", "rest"]
)
def test_defects_seeded_in_the_rendered_manifests_are_found(
    seeded: tuple[defects.Defect, ...], count: int, goal: int
) -> None:
    missed = [each.name for each in seeded if not each.found()]
    assert len(seeded) == count and count - len(missed) >= goal, missed


QUEUED = """\
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: QUEUE, namespace: a}
---
apiVersion: batch/v1
kind: Job
metadata: {name: a, namespace: a}
spec: {suspend: true, template: {spec: {containers: [{name: m, image: a}]}}}
"""


SPREAD = """\
apiVersion: v1
kind: Service
metadata: {name: a, namespace: a}
spec: {selector: {app: a}, ports: [{port: 80, targetPort: PORT}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: a, namespace: a}
spec:
  podSelector: {matchExpressions: [{key: app, operator: In, values: [b, VALUE]}]}
  ingress: [{from: [{namespaceSelector: {matchLabels: {team: x}}}], ports: [{port: 80, endPort: 90}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: a, labels: {app: a}}
spec: {containers: [{name: m, image: a, ports: [{containerPort: 8000, name: web}]}]}
"""


@pytest.mark.parametrize(
    ("port", "value", "rules"),
    [("web", "a", {"HF160"}), ("web", "c", {"HF148"}), ("8001", "a", {"HF148", "HF160"})],
)
def test_ports_have_names_and_policies_expressions(port: str, value: str, rules: set[str]) -> None:
    text = SPREAD.replace("PORT", port).replace("VALUE", value)
    assert found(text) & {"HF148", "HF160"} == rules


FUSE = """\
apiVersion: v1
kind: PersistentVolume
metadata: {name: data}
spec: {csi: {driver: gcsfuse.csi.storage.gke.io, volumeHandle: b}, accessModes: [ReadOnlyMany], capacity: {storage: 1Ti}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: n}
spec: {volumeName: data, accessModes: [ReadOnlyMany], resources: {requests: {storage: 1Ti}}}
---
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: n, annotations: {ANNOTATION: "true"}}
spec: {containers: [{name: m, image: a}], volumes: [{name: d, persistentVolumeClaim: {claimName: data}}]}
"""


@pytest.mark.parametrize(
    ("text", "rule", "wrong"),
    [
        (QUEUED.replace("QUEUE", "team"), "HF314", True),
        (QUEUED.replace("QUEUE", "default"), "HF314", False),  # Kueue takes work without a label into it
        (FUSE.replace("ANNOTATION", "other"), "HF204", True),  # a claim on a bucket needs the sidecar too
        (FUSE.replace("ANNOTATION", "gke-gcsfuse/volumes"), "HF204", False),
    ],
    ids=["queue", "default queue", "no sidecar", "sidecar"],
)
def test_what_other_objects_say_decides(text: str, rule: str, wrong: bool) -> None:
    assert (rule in found(text)) is wrong


@pytest.mark.parametrize(("cohort", "wrong"), [("", True), ("cohortName: all, ", False)])
def test_a_gang_may_borrow_of_its_cohort(cohort: str, wrong: bool) -> None:
    rule = all_rules()["HF311"]
    groups = "resourceGroups: [{coveredResources: [nvidia.com/gpu], flavors: [{name: spot, resources: [{name: nvidia.com/gpu, nominalQuota: 3}]}]}]"
    other = f"---\napiVersion: kueue.x-k8s.io/v1beta2\nkind: ClusterQueue\nmetadata: {{name: other}}\nspec: {{{cohort}{groups}}}\n"
    text = (
        rule.bad.replace("spec:\n  resourceGroups", f"spec:\n  {cohort.replace(', ', '')}\n  resourceGroups", 1) + other
    )
    assert ("HF311" in found(text)) is wrong
