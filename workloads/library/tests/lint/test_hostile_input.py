"""Tests that hostile files neither take long nor reach the terminal or CI through the output.

Odd values are in fuzz/.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.lint import formats
from holdfast.lint.engine import Options, Report, lint, lint_texts

ROOT = Path(__file__).parents[4]
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: training}\n"
# CPU seconds: ten times what the slowest file takes. A quadratic reading takes minutes.
BOUND_S = 20.0


def judge_text(text: str) -> Report:
    return lint_texts({"a.yaml": text}, Options())


def budgets(count: int) -> str:
    text = ""
    for number in range(count):
        labels = f"{{app: a{number}, all: 'yes'}}"
        text += f"""\
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: d{number}, namespace: s}}
spec: {{template: {{metadata: {{labels: {labels}}}, spec: {{containers: [{{name: m}}]}}}}}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{name: p{number}, namespace: s}}
spec: {{maxUnavailable: 1, selector: {{matchLabels: {labels}}}}}
"""
    return text


def shell(script: str) -> str:
    return (
        f"{POD}spec: {{containers: [{{name: m, image: x, command: [sh, -c,"
        f" {json.dumps(script)}]}}]}}\n"
    )


def probe(number: int) -> str:
    port = number + 1
    return f"{{name: m{number}, image: x, readinessProbe: {{httpGet: {{path: /, port: {port}}}}}}}"


def settings(text: str) -> str:
    """Writes a Job that mounts a file of settings, and a claim for its results."""
    return f"""\
apiVersion: v1
kind: ConfigMap
metadata: {{name: a, namespace: training}}
data: {{a.yaml: "{text}"}}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: a, namespace: training}}
spec:
  template:
    spec:
      volumes:
      - {{name: settings, configMap: {{name: a}}}}
      - {{name: results, persistentVolumeClaim: {{claimName: a}}}}
      containers:
      - name: m
        image: x
        volumeMounts: [{{name: settings, mountPath: /a}}, {{name: results, mountPath: /b}}]
"""


BIG = 100_000
HUGE: dict[str, Callable[[], str]] = {
    "open braces": lambda: "a: [\n" + "{{" * (BIG // 2),
    "traps closed": lambda: shell("trap 'exit " * (BIG // 11)),
    "escaped quotes": lambda: shell('\\"' * (BIG // 2)),
    "sleeps": lambda: shell("sleep " * (BIG // 6)),
    "words after a shell": lambda: (
        f"{POD}spec: {{containers: [{{name: m, image: x, command: [sh{', a b' * 5_000}]}}]}}\n"
    ),
    "probes": lambda: f"{POD}spec: {{containers: [{', '.join(map(probe, range(3_000)))}]}}\n",
    "spaces": lambda: shell("a" + " " * BIG + "b"),
    "open ignores": lambda: "# " + "# holdfast: ignore[" * (BIG // 19) + "\n" + POD,
    "reason of spaces": lambda: f"{POD}# holdfast: ignore[HF101] a{' ' * BIG}b\n",
    "keys": lambda: (
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec:\n"
        + "".join(f"  k{n}: v\n" for n in range(20_000))
    ),
    "one key": lambda: "a: 1\n" * 10_000,
    "a long key by alias": lambda: (
        f"{POD}x: &k {'k' * 200_000}\nspec: {{containers: [{{name: m}}], tolerations:"
        f" [{', '.join(['{key: *k}'] * 2_000)}]}}\n"
    ),
    "merges": lambda: (
        "a: &a {"
        + ", ".join(f"k{n}: v" for n in range(5_000))
        + "}\nb: {<<: ["
        + ", ".join(["*a"] * 20_000)
        + "]}\n"
    ),
    "alias bombs": lambda: "".join(
        "---\na: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b,"
        " *b, *b, *b, *b, *b, *b, *b]\nd: [*c, *c, *c, *c, *c, *c, *c, *c]\n"
        for _ in range(400)
    ),
    "budgets": lambda: budgets(500),
    "ignores": lambda: "".join(
        f"---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: n{n}}}  # holdfast: ignore[HF305]"
        " because\n"
        for n in range(2_000)
    ),
    "deep": lambda: "a: " + "[" * 37 + "[], " * (BIG // 4) + "]" * 37 + "\n",
    "deep settings": lambda: settings("[" * 50_000),
    "numbers": lambda: "a: [" + ", ".join(["0x" + "f" * 5_000] * 50) + "]\n",
}


LISTS = {
    "group": """\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: a, namespace: training}
rules: [{apiGroups: [[batch]], resources: [jobs], verbs: [get]}]
""",
    "mode": """\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: training}
spec: {accessModes: [[ReadWriteOnce]]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: a, namespace: training}
spec:
  template:
    spec:
      containers: [{name: m, image: x}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
""",
    "claims": """\
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: a, namespace: training}
spec:
  template: {spec: {containers: [{name: m, image: x}]}}
  volumeClaimTemplates: [{metadata: {name: data}}]
  volumeClaimPolicies:
  - templates:
    - spec: {storageClassName: standard-rwx, resources: {requests: {storage: 1Gi}}}
""",
    "mount": f"""\
{POD}spec:
  volumes: [{{name: data, configMap: {{name: a}}}}]
  containers:
  - name: m
    image: x
    args: [--model=meta-llama/Llama-3.1-8B]
    volumeMounts: [{{name: [data], mountPath: /data/a.yaml}}]
""",
}


@pytest.mark.parametrize("name", LISTS)
def test_unexpected_lists_are_judged(name: str) -> None:
    assert judge_text(LISTS[name]).files == 1


@pytest.mark.process
@pytest.mark.parametrize("name", HUGE)
def test_large_file_is_judged_in_bounded_time(name: str) -> None:
    text = HUGE[name]()
    # Time of this thread: threads of earlier tests of the worker may still run.
    start = time.thread_time()
    formats.text(judge_text(text))
    seconds = time.thread_time() - start
    assert seconds < BOUND_S, f"{len(text):,} characters took {seconds:.1f} s"


def test_hits_per_rule_are_limited() -> None:
    tolerations = ", ".join(f"{{key: k{n}, operator: Exists}}" for n in range(200))
    report = judge_text(
        f"{POD}spec: {{containers: [{{name: m, image: a}}], tolerations: [{tolerations}]}}\n"
    )
    assert sum(finding.rule == "HF002" for finding in report.findings) == 100


def test_pipes_and_devices_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    report = lint([tmp_path / "pipe.yaml", tmp_path / "zero.yaml", tmp_path], Options())
    assert {finding.rule for finding in report.findings} == {"HF904"}
    assert "regular file" in report.findings[0].message


# -- Text of a file in the output --

WORDS = (
    "\n::error file=x::injected",
    "\r::add-mask::a",
    "a\n##[error]injected",
    "##[group]injected",
    "\x1b[2Jclear",
    "\u202eevil",
    "[bold red]markup[/]",
    "<img src=x onerror=alert(1)>",
    "| cell | `code` @everyone",
    "\u2028::warning::x",
    "\ud800",
)


def write_manifest(word: str) -> str:
    """Writes a manifest whose names, keys, values and reasons are `word`."""
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": word,
            "namespace": word,
            "labels": {word: 1},
        },
        "spec": {
            word: 1,
            "template": {
                "metadata": {"annotations": {f"holdfast.dev/ignore-{word}": word}},
                "spec": {
                    "priorityClassName": word,
                    "nodeSelector": {word: word, "cloud.google.com/gke-accelerator": word},
                    "tolerations": [
                        {
                            "key": word,
                            "operator": word,
                            "effect": word,
                        }
                    ],
                    "containers": [
                        {
                            "name": word,
                            "image": word,
                            word: word,
                            "env": [{"name": f"{word}_TOKEN", "value": word}],
                        }
                    ],
                },
            },
        },
    }
    return json.dumps(body)


def find_commands(output: str) -> list[str]:
    """Returns the lines that GitHub's runner would take for a command."""
    return [line for line in output.splitlines() if line.lstrip().startswith("::") or "##[" in line]


@pytest.mark.parametrize("word", WORDS)
def test_manifest_text_becomes_no_command_and_no_escape(word: str) -> None:
    report = judge_text(write_manifest(word))
    assert len(report.findings) > (0 if word == "\ud800" else 5), "half a character is no YAML"
    report = replace(report, findings=[replace(finding, fix=word) for finding in report.findings])
    text = formats.text(report)
    assert find_commands(text) == []
    assert text.replace("\n", "").isprintable()
    github = formats.format_github(report)
    assert len(github.splitlines()) == len(report.active) and "##[" not in github
    for line in github.splitlines():
        assert line.startswith(("::error ", "::warning ", "::notice "))
    assert github.replace("\n", "").isprintable()
    json.loads(formats.format_json(report).encode())


@pytest.mark.process
def test_file_name_becomes_no_workflow_command(tmp_path: Path) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        settings = {"PYTHONPATH": f"{ROOT}:{ROOT / 'workloads/library'}", "GITHUB_ACTIONS": "true"}
        line = [
            sys.executable,
            "-m",
            "holdfast",
            "lint",
            *words,
        ]
        return subprocess.run(
            line,
            cwd=tmp_path,
            env=os.environ | settings,
            capture_output=True,
            text=True,
            check=False,
        )

    for name in ("::error::injected.yaml", "##[error]injected.yaml", "a\n::error::b.yaml"):
        (tmp_path / name).write_text("kind: [Job\n")
    process = command(".")
    assert process.returncode == 1, process.stderr
    assert find_commands(process.stdout) == []
    for line in process.stderr.splitlines():
        if "::" in line:
            assert "injected" not in line.split("::")[1] or "file=" in line
    process = command("b\n::error::c.yaml")
    assert process.returncode == 2 and find_commands(process.stderr) == []
