"""Defects of the linter's own field that it once passed; each is one change to a clean object."""

import pytest

from holdfast.lint.engine import Options, lint_texts
from holdfast.lint.pages import example_text
from holdfast.lint.registry import all_rules
from workloads.library.tests.lint.seeded.defects import FOLDER, TOPICS


def found(base: str, change: str) -> set[str]:
    """Rules that find the change, merged into a clean object of the linter's examples."""
    rule = next(rule for rule in all_rules().values() if rule.base == base)
    return {f.rule for f in lint_texts({"a.yaml": example_text(rule, change)}, Options()).active}


def hook(*words: str) -> str:
    return f"lifecycle: {{preStop: {{exec: {{command: {list(words)}}}}}}}"


@pytest.mark.parametrize(
    ("base", "change", "expected"),
    [
        ("container", hook("sh", "-c", "sleep 2m"), "HF103"),
        ("container", hook("/bin/sleep", "90s"), "HF103"),
        ("container", hook("python", "-c", "import time; time.sleep(90)"), "HF103"),
        ("container", hook("sh", "-c", "sleep infinity"), "HF103"),
        ("container", 'command: [bash, -c, "cleanup() { save; exit 0; }; trap cleanup TERM; python t.py"]', "HF105"),
        ("container", 'command: [bash, -c, "function bye { exit 0; }\\ntrap bye SIGTERM EXIT\\npython t.py"]', "HF105"),
        ("container", "command: [sh, -c, \"trap 'exit 0' 15; exec python t.py\"]", "HF105"),
        ("container", hook("/bin/sh", "-c", "python save_checkpoint.py"), "HF108"),
        ("container", hook("sh", "-c", "gsutil cp -r /tmp/model gs://bucket/"), "HF108"),
        ("container", "command: [python, t.py, --checkpoint-dir, checkpoints]", "HF201"),
        ("container", "command: [python, t.py, --checkpoints=./out]", "HF201"),
        ("container", "command: [python, -m, holdfast, train, run, --run, one]", "HF121"),
        ("container", "command: [torchrun, --nnodes, '4', t.py]", "HF122"),
        ("container", "ports: [{containerPort: 80, hostPort: 80}]", "HF409"),
        ("container", "securityContext: {capabilities: {add: [SYS_ADMIN]}}", "HF409"),
        ("container", "securityContext: {privileged: true}", "HF409"),
        ("serving-pod", "initContainers: [{name: p, image: a, startupProbe: {tcpSocket: {port: 1}}}]", "HF506"),
    ],
)
def test_a_seeded_defect_is_found(base: str, change: str, expected: str) -> None:
    assert expected in found(base, change)


@pytest.mark.parametrize(
    ("base", "change", "passed"),
    [
        ("container", hook("sleep", "2"), "HF103"),
        ("container", 'command: [bash, -c, "cleanup() { save; exit 143; }; trap cleanup TERM; python t.py"]', "HF105"),
        ("container", 'command: [bash, -c, "done() { exit 0; }; trap cleanup TERM; python t.py"]', "HF105"),
        ("container", hook("python", "-m", "holdfast.runtime.drain"), "HF108"),
        ("container", "command: [python, t.py, --checkpoint-interval, '100', --checkpoint, org/model]", "HF201"),
        ("container", "command: [python, t.py, --checkpoint-dir, gs://bucket/run]", "HF201"),
        ("container", "command: [torchrun, --nnodes=1:4, t.py]", "HF122"),
        ("container", "command: [torchrun, --nnodes=2, t.py]", "HF122"),
        ("container", "securityContext: {capabilities: {add: [NET_BIND_SERVICE]}}", "HF409"),
        ("serving-pod", "initContainers: [{name: p, image: migrate, command: [migrate]}]", "HF506"),
        ("container", hook("sh", "-c", "for i in 1 2; do sleep 1; done"), "HF103"),
        ("container", hook("sh", "-c", "for i in $(seq 2); do sleep 1; done; sleep 1"), "HF103"),
        ("container", hook("sh", "-c", "i=0; while [ $i -lt 3 ]; do sleep 1; i=$((i+1)); done"), "HF103"),
        ("container", "command: [sh, -c, \"trap 'save; exit' TERM; python t.py & wait\"]", "HF105"),
        ("container", "command: [bash, -c, \"trap 'exit' TERM; python t.py & wait\"]", "HF105"),
        ("container", 'command: [sh, -c, "set -e\\npython t.py\\nrm x || true"]', "HF109"),
        ("container", 'command: [sh, -c, "python t.py; exit $?"]', "HF109"),
        ("job-pod", "volumes: [{name: tmp, emptyDir: {sizeLimit: 50Gi, medium: Memory}}]", "HF207"),
        (
            "job",
            "spec: {parallelism: 4, completions: 8, template: {spec: {containers: [{name: m, image: a, command: [torchrun, --nnodes=4, t.py]}]}}}",
            "HF122",
        ),
    ],
)
def test_what_is_right_passes(base: str, change: str, passed: str) -> None:
    assert passed not in found(base, change)


@pytest.mark.parametrize("name", ["clean", "serving"])
def test_the_files_that_defects_are_seeded_into_are_clean(name: str) -> None:
    assert lint_texts({"a.yaml": (FOLDER / f"{name}.yaml").read_text()}, Options()).active == []


# A claim of a quite different name may well exist in the cluster.
OUT_OF_REACH = {"claim that nobody made"}


@pytest.mark.parametrize("topic", TOPICS)
def test_defects_seeded_into_a_whole_file_are_found(topic: str) -> None:
    missed = {defect.name for defect in TOPICS[topic] if not defect.found() & set(defect.rules)}
    assert missed <= OUT_OF_REACH


def policy(*cidrs: str) -> str:
    peers = ", ".join(f"{{ipBlock: {{cidr: '{cidr}'}}}}" for cidr in cidrs)
    return (
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: a, namespace: b}\n"
        f"spec: {{podSelector: {{}}, policyTypes: [Egress], egress: [{{to: [{peers}], ports: [{{port: 443}}]}}]}}\n"
    )


@pytest.mark.parametrize(
    "cidrs", [("0.0.0.0/1", "128.0.0.0/1"), ("0.0.0.0/1",), ("::/1", "8000::/1"), ("0.0.0.0/2", "64.0.0.0/2")]
)
def test_halves_of_the_internet_are_the_internet(cidrs: tuple[str, ...]) -> None:
    assert "HF414" in {f.rule for f in lint_texts({"a.yaml": policy(*cidrs)}, Options()).active}


@pytest.mark.parametrize("cidrs", [("10.0.0.0/8",), ("199.36.153.8/30", "10.0.0.0/8"), ("odd",)])
def test_named_ranges_are_not(cidrs: tuple[str, ...]) -> None:
    assert "HF414" not in {f.rule for f in lint_texts({"a.yaml": policy(*cidrs)}, Options()).active}


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


@pytest.mark.parametrize(("annotation", "wrong"), [("gke-gcsfuse/volumes", False), ("other", True)])
def test_a_claim_on_a_bucket_needs_the_sidecar_too(annotation: str, wrong: bool) -> None:
    text = FUSE.replace("ANNOTATION", annotation)
    assert ("HF204" in {f.rule for f in lint_texts({"a.yaml": text}, Options()).active}) is wrong


@pytest.mark.parametrize(("cohort", "wrong"), [("", True), ("cohortName: all, ", False)])
def test_a_gang_may_borrow_of_its_cohort(cohort: str, wrong: bool) -> None:
    rule = all_rules()["HF311"]
    groups = "resourceGroups: [{coveredResources: [nvidia.com/gpu], flavors: [{name: spot, resources: [{name: nvidia.com/gpu, nominalQuota: 3}]}]}]"
    other = f"---\napiVersion: kueue.x-k8s.io/v1beta2\nkind: ClusterQueue\nmetadata: {{name: other}}\nspec: {{{cohort}{groups}}}\n"
    text = (
        rule.bad.replace("spec:\n  resourceGroups", f"spec:\n  {cohort.replace(', ', '')}\n  resourceGroups", 1) + other
    )
    assert ("HF311" in {f.rule for f in lint_texts({"a.yaml": text}, Options()).active}) is wrong
