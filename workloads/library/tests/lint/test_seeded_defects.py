"""Tests that seeded defects are found, and that correct fields of foreign manifests pass."""

import pytest

from holdfast.lint.engine import Options, lint_texts
from holdfast.lint.registry import all_rules
from holdfast.lint.spelling import misspells
from workloads.library.tests.lint import defects
from workloads.library.tests.lint.defects import (
    SINGLE,
    find_rules,
    find_rules_in_change,
    make_file,
    pre_stop,
)

HEAD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: team}\n"


def pod(spec: str) -> str:
    return f"{HEAD}spec: {{containers: [{{name: m, image: a}}], {spec}}}\n"


OF_GKE = (
    "cloud.google.com/gke-tpu-accelerator",
    "cloud.google.com/gke-tpu-topology",
    "cloud.google.com/gke-local-nvme-ssd",
    "cloud.google.com/compute-class",
    "cloud.google.com/gke-ephemeral-storage-local-ssd",
    "cloud.google.com/gke-confidential-nodes",
    "iam.gke.io/gke-metadata-server-enabled",
    "node-role.kubernetes.io/control-plane",
    "cloud.google.com/gke-os-distribution",
    "projectcalico.org/ds-ready",
)
GOOGLES = ("nvidia-tesla-t4", "nvidia-h100-mega-80gb", "nvidia-h200-141gb", "nvidia-b200")
SWITCH = "env: [{name: MYSQL_ALLOW_EMPTY_PASSWORD, value: '1'}]"


GRACE = "terminationGracePeriodSeconds: 25"
FUSE = """\
metadata: {annotations: {gke-gcsfuse/volumes: 'VALUE'}}
spec: {volumes: [{name: d, persistentVolumeClaim: {claimName: data}}]}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: data}
spec:
  csi: {driver: gcsfuse.csi.storage.gke.io, volumeHandle: b}
  accessModes: [ReadOnlyMany]
  capacity: {storage: 1Ti}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: training}
spec: {volumeName: data, accessModes: [ReadOnlyMany], resources: {requests: {storage: 1Ti}}}
"""
FOUND = (
    # A typo of a label that decides.
    ("", pod('nodeSelector: {cloud.google.com/gke-spto: "true"}'), "HF003"),
    ("", pod('nodeSelector: {cloud.google.com/gke-accelerators: "true"}'), "HF003"),
    ("", pod('nodeSelector: {holdfast.dev/pool-clas: "true"}'), "HF003"),
    # One error does not hide another.
    ("", pod(f"{GRACE}, nodeSelector: {{holdfast.dev/pool-class: spot-l4s}}"), "HF101"),
    (
        "",
        pod(
            f"{GRACE}, tolerations: [{{key: provisioning-teir, value: preemptible, effect:"
            " NoSchedule}]"
        ),
        "HF101",
    ),
    (
        "",
        pod(
            f'{GRACE}, tolerations: [{{key: spot, operator: Equal, value: "true", effect:'
            " NoSchedule}]"
        ),
        "HF101",
    ),
    ("job-template", FUSE.replace("VALUE", "false"), "HF204"),
)


@pytest.mark.parametrize(("base", "change", "expected"), [*SINGLE, *FOUND])
def test_a_seeded_defect_is_found(base: str, change: str, expected: str) -> None:
    assert expected in find_rules_in_change(base, change)


@pytest.mark.parametrize(
    ("base", "change", "passed"),
    [
        ("container", pre_stop("sleep", "2"), "HF103"),
        (
            "container",
            'command: [bash, -c, "cleanup() { save; exit 143; }; trap cleanup TERM; python t.py"]',
            "HF105",
        ),
        (
            "container",
            'command: [bash, -c, "done() { exit 0; }; trap cleanup TERM; python t.py"]',
            "HF105",
        ),
        ("container", pre_stop("python", "-m", "holdfast.runtime.drain"), "HF108"),
        (
            "container",
            "command: [python, t.py, --checkpoint-interval, '100', --checkpoint, org/model]",
            "HF201",
        ),
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
        (
            "jobset-job",
            (
                "template: {spec: {containers: [{name: m, image: a, command: [t, --rdzv-endpoint,"
                " etcd-0.etcd:1]}]}}"
            ),
            "HF126",
        ),
        (
            "job",
            (
                "metadata: {name: null, generateName: a-}\nspec: {template: {spec: {containers:"
                " [{name: m, image: a, env: [{name: HOLDFAST_JOB, value: b}]}]}}}"
            ),
            "HF127",
        ),
        ("serving-container", "command: [vllm, serve, m, --shutdown-timeout, '50']", "HF145"),
        (
            "job",
            (
                "spec: {parallelism: 4, completions: 8, template: {spec: {containers: [{name: m,"
                " image: a, command: [torchrun, --nnodes=4, t.py]}]}}}"
            ),
            "HF122",
        ),
        ("", f"{HEAD}spec: {{containers: [{{name: m, image: a, {SWITCH}}}]}}\n", "HF416"),
        ("", pod('tolerations: [{key: "group-{{ .Index }}", operator: Exists}]'), "HF002"),
        *(("", pod(f'nodeSelector: {{{key}: "x"}}'), "HF003") for key in OF_GKE),
        *(
            ("", pod(f"nodeSelector: {{cloud.google.com/gke-accelerator: {name}}}"), "HF035")
            for name in GOOGLES
        ),
        ("", f"%YAML 1.1\n---\n{HEAD}spec: {{}}\n", "HF904"),
        (
            "",
            (
                f"%YAML 1.2\n%TAG ! tag:a.example,2000:\n---\n{HEAD}spec: {{}}\n...\n%YAML"
                f" 1.2\n---\n{HEAD}spec: {{}}\n"
            ),
            "HF904",
        ),
        ("", "kind: Job\n{% if x %}\n  a: [\n{% endif %}\n", "HF904"),
        ("", "kind: Job\nname: <%= name %>\n a: b\n", "HF904"),
        ("job-template", FUSE.replace("VALUE", "true"), "HF204"),
        # GKE adds the toleration of the GPU taint.
        ("job-pod", "tolerations: [{key: provisioning-tier, operator: Exists}]", "HF004"),
    ],
)
def test_correct_manifest_passes(base: str, change: str, passed: str) -> None:
    assert passed not in find_rules_in_change(base, change)


SPOT_RULES = {"HF101", "HF102", "HF103", "HF106", "HF110", "HF113", "HF114", "HF302", "HF303"}


@pytest.mark.parametrize(
    ("word", "name", "is_typo"),
    [
        ("cloud.google.com/gke-spto", "cloud.google.com/gke-spot", True),
        ("cloud.google.com/gke_spot", "cloud.google.com/gke-spot", True),
        ("cloud.google.con/gke-spot", "cloud.google.com/gke-spot", True),
        ("provisioning-teir", "provisioning-tier", True),
        ("spot-l4s", "spot-l4", True),
        ("cloud.google.com/gke-spot", "cloud.google.com/gke-spot", False),
        ("cloud.google.com/gke-nodepool", "cloud.google.com/gke-spot", False),
        ("cloud.google.com/gke-accelerator-count", "cloud.google.com/gke-accelerator", False),
        ("cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-accelerator", False),
        ("spot-h100", "spot-l4", False),
    ],
)
def test_typos_are_judged_on_what_differs(word: str, name: str, is_typo: bool) -> None:
    assert misspells(word, name) is is_typo


@pytest.mark.parametrize(
    "spec",
    [
        "terminationGracePeriodSeconds: 600",
        (
            "terminationGracePeriodSeconds: 600, nodeSelector: {kubernetes.io/os: linux},"
            " tolerations: [{operator: Exists}]"
        ),
        (
            "nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}, tolerations: [{key:"
            " nvidia.com/gpu, operator: Exists}]"
        ),
        "nodeSelector: {cloud.google.com/compute-class: gpu}, terminationGracePeriodSeconds: 120",
        "nodeSelector: {cloud.google.com/gke-nodepool: mine}, terminationGracePeriodSeconds: 120",
        "nodeSelector: {cloud.google.com/gke-boot-disk: pd}, terminationGracePeriodSeconds: 120",
        "nodeSelector: {holdfast.dev/pool-class: spot-free}, terminationGracePeriodSeconds: 120",
    ],
)
def test_pod_without_spot_is_not_judged_by_spot_rules(spec: str) -> None:
    head = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a, namespace: team}\nspec:\n"
    main = "{name: m, image: a, command: [sh, -c, 'a; b']}"
    spec_text = f"{{restartPolicy: OnFailure, containers: [{main}], {spec}}}"
    assert (
        not find_rules(f"{head}  backoffLimit: 3\n  template: {{spec: {spec_text}}}\n") & SPOT_RULES
    )


PATCHED = "terminationGracePeriodSeconds: 25, nodeSelector: {cloud.google.com/gke-spot: 'true'}"
GPU = "containers: [{name: m, resources: {limits: {nvidia.com/gpu: '1'}}}]"
PATCH = (
    "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {template: {spec:"
    f" {{{PATCHED}, {GPU}}}}}}}\n"
)


def test_patch_is_judged_by_its_own_fields() -> None:
    rules = find_rules(PATCH)
    assert not rules & {"HF030", "HF102", "HF036"} and "HF101" in rules


@pytest.mark.parametrize(
    "field", ["patches: [{path: p/a.yaml}]", "patchesStrategicMerge: [p/a.yaml]"]
)
def test_a_file_that_a_kustomization_names_is_a_patch(field: str) -> None:
    kustomization = f"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n{field}\n"
    positive = (
        "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: spot}\nvalue: 5\n"
    )
    assert "HF305" not in find_rules(
        kustomization, positive, names=("over/kustomization.yaml", "over/p/a.yaml")
    )
    assert "HF305" in find_rules(
        kustomization, positive, names=("over/kustomization.yaml", "over/a.yaml")
    )


@pytest.mark.parametrize(
    ("service", "needs_probe"), [("", True), ("publishNotReadyAddresses: true, ", False)]
)
def test_peer_service_needs_no_readiness_probe(service: str, needs_probe: bool) -> None:
    labeled = HEAD.replace("namespace: team", "namespace: team, labels: {app: a}")
    spot = "nodeSelector: {cloud.google.com/gke-spot: 'true'}, containers: [{name: m, image: a}]"
    serving = (
        "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: team}\nspec:"
        f" {{{service}selector: {{app: a}}}}\n"
    )
    assert ("HF140" in find_rules(f"{labeled}spec: {{{spot}}}\n", serving)) is needs_probe


@pytest.mark.parametrize(
    "script",
    [
        "for i in 1 2; do sleep 1; done",
        "date; until test -f /a; do sleep 1; done",
        "sleep $GRACE",
        'sleep "$N"',
    ],
)
def test_variable_sleep_is_reported_as_unknown(script: str) -> None:
    rule = all_rules()["HF103"]
    text = make_file(rule, pre_stop("sh", "-c", script))
    (finding,) = lint_texts({"a.yaml": text}, Options()).active
    assert finding.rule == "HF103" and "cannot tell how long" in finding.message


def test_the_rendered_manifests_are_clean() -> None:
    assert defects.clean().active == []


@pytest.mark.parametrize("seeded", [defects.JOBS, defects.REST], ids=["jobs", "rest"])
def test_defects_seeded_in_the_rendered_manifests_are_found(
    seeded: tuple[defects.Defect, ...],
) -> None:
    assert [defect.name for defect in seeded if not defect.found()] == []


@pytest.mark.parametrize(
    ("port", "value", "rules"),
    [("web", "server", {"HF160"}), ("web", "c", {"HF148"}), ("8001", "server", {"HF148", "HF160"})],
)
def test_ports_have_names_and_policies_expressions(port: str, value: str, rules: set[str]) -> None:
    rule = all_rules()["HF160"]
    text = rule.good
    changes = {
        "targetPort: 8080": f"targetPort: {port}",
        "containerPort: 8080": "containerPort: 8000, name: web",
        "podSelector: {matchLabels: {app: server}}": (
            f"podSelector: {{matchExpressions: [{{key: app, operator: In, values: [b, {value}]}}]}}"
        ),
        "{port: 8080}": "{port: 80, endPort: 90}",
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    assert find_rules(make_file(rule, text)) & {"HF148", "HF160"} == rules


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("ifNotPresent", "did you mean IfNotPresent?"),
        ("x", "there are Always, IfNotPresent, Never"),
    ],
)
def test_an_unknown_value_gets_a_suggestion(value: str, hint: str) -> None:
    text = pod(f"initContainers: [{{name: i, image: a, imagePullPolicy: {value}}}]")
    findings = lint_texts({"a.yaml": text}, Options()).findings
    messages = [finding.message for finding in findings if finding.rule == "HF510"]
    assert messages == [f"there is no value {value}; {hint}"]


def test_default_queue_takes_work_without_a_label() -> None:
    bad = all_rules()["HF314"].bad
    good = bad.replace("name: spot, namespace", "name: default, namespace")
    assert "HF314" in find_rules(bad) and "HF314" not in find_rules(good)


@pytest.mark.parametrize(("cohort", "wrong"), [("", True), ("cohortName: all, ", False)])
def test_gang_may_borrow_from_its_cohort(cohort: str, wrong: bool) -> None:
    bad = all_rules()["HF311"].bad
    groups = (
        "resourceGroups: [{coveredResources: [nvidia.com/gpu], flavors: [{name: spot, resources:"
        " [{name: nvidia.com/gpu, nominalQuota: 3}]}]}]"
    )
    other = (
        "---\napiVersion: kueue.x-k8s.io/v1beta2\nkind: ClusterQueue\nmetadata: {name:"
        f" other}}\nspec: {{{cohort}{groups}}}\n"
    )
    text = bad.replace("resourceGroups", f"{cohort}resourceGroups", 1)
    assert ("HF311" in find_rules(text + other)) is wrong
