"""Defects of the linter's own field that it once passed; each is one change to a clean object."""

import pytest

from holdfast.lint.engine import Options, lint_texts
from holdfast.lint.pages import example_text
from holdfast.lint.registry import all_rules
from workloads.library.tests.lint import defects
from workloads.library.tests.lint.defects import SINGLE, found_in, pre_stop


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
    ],
)  # fmt: skip
def test_what_is_right_passes(base: str, change: str, passed: str) -> None:
    assert passed not in found_in(base, change)


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
    assert {f.rule for f in lint_texts({"a.yaml": text}, Options()).active} & {"HF148", "HF160"} == rules


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
    assert (rule in {f.rule for f in lint_texts({"a.yaml": text}, Options()).active}) is wrong


@pytest.mark.parametrize(("cohort", "wrong"), [("", True), ("cohortName: all, ", False)])
def test_a_gang_may_borrow_of_its_cohort(cohort: str, wrong: bool) -> None:
    rule = all_rules()["HF311"]
    groups = "resourceGroups: [{coveredResources: [nvidia.com/gpu], flavors: [{name: spot, resources: [{name: nvidia.com/gpu, nominalQuota: 3}]}]}]"
    other = f"---\napiVersion: kueue.x-k8s.io/v1beta2\nkind: ClusterQueue\nmetadata: {{name: other}}\nspec: {{{cohort}{groups}}}\n"
    text = (
        rule.bad.replace("spec:\n  resourceGroups", f"spec:\n  {cohort.replace(', ', '')}\n  resourceGroups", 1) + other
    )
    assert ("HF311" in {f.rule for f in lint_texts({"a.yaml": text}, Options()).active}) is wrong
