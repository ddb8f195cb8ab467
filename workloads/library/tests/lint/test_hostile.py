"""Large files are judged in bounded time, and nothing of a file speaks to the terminal or to CI.
Odd values: fuzz/.
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
# CPU seconds; a quadratic reading of such a file takes minutes.
BOUND_S = 5.0


def judged(text: str) -> Report:
    return lint_texts({"a.yaml": text}, Options())


def budgets(count: int) -> str:
    text = ""
    for n in range(count):
        labels = f"{{app: a{n}, all: 'yes'}}"
        text += (
            f"---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d{n}, namespace:"
            f" s}}\nspec: {{template: {{metadata: {{labels: {labels}}}, spec: {{containers:"
            " [{name: m}]}}}\n"
        )
        text += (
            f"---\napiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {{name: p{n},"
            f" namespace: s}}\nspec: {{maxUnavailable: 1, selector: {{matchLabels: {labels}}}}}\n"
        )
    return text


def shell(script: str) -> str:
    return (
        f"{POD}spec: {{containers: [{{name: m, image: x, command: [sh, -c,"
        f" {json.dumps(script)}]}}]}}\n"
    )


BIG = 100_000
HUGE: dict[str, Callable[[], str]] = {
    "open braces": lambda: "a: [\n" + "{{" * (BIG // 2),
    "traps closed": lambda: shell("trap 'exit " * (BIG // 11)),
    "sleeps": lambda: shell("sleep " * (BIG // 6)),
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
    "numbers": lambda: "a: [" + ", ".join(["0x" + "f" * 5_000] * 50) + "]\n",
}


@pytest.mark.process
@pytest.mark.parametrize("name", HUGE)
def test_a_large_file_is_judged_in_time_that_grows_with_it(name: str) -> None:
    text = HUGE[name]()
    # Of this thread: those that earlier tests of the worker left may still be at work.
    began = time.thread_time()
    formats.text(judged(text))
    seconds = time.thread_time() - began
    assert seconds < BOUND_S, f"{len(text):,} characters took {seconds:.1f} s"


def test_one_rule_does_not_flood_the_report_about_one_object() -> None:
    tolerations = ", ".join(f"{{key: k{n}, operator: Exists}}" for n in range(200))
    report = judged(
        f"{POD}spec: {{containers: [{{name: m, image: a}}], tolerations: [{tolerations}]}}\n"
    )
    assert sum(f.rule == "HF002" for f in report.findings) == 100


@pytest.mark.timeout(60)
def test_pipes_and_devices_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    report = lint([tmp_path / "pipe.yaml", tmp_path / "zero.yaml", tmp_path], Options())
    assert {f.rule for f in report.findings} == {"HF904"} and "regular file" in report.findings[
        0
    ].message


# -- What a file may put into the output --

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


def planted(word: str) -> str:
    """A manifest whose names, keys, values and reasons are `word`."""
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


def interpreted(output: str) -> list[str]:
    """Lines that GitHub's runner would take for a command."""
    return [line for line in output.splitlines() if line.lstrip().startswith("::") or "##[" in line]


@pytest.mark.parametrize("word", WORDS)
def test_nothing_of_a_manifest_becomes_a_workflow_command_or_a_terminal_escape(word: str) -> None:
    found = judged(planted(word))
    assert len(found.findings) > (0 if word == "\ud800" else 5), "half a character is no YAML"
    report = replace(found, findings=[replace(finding, fix=word) for finding in found.findings])
    text = formats.text(report)
    assert interpreted(text) == []
    assert all(char.isprintable() or char == "\n" for char in text)
    github = formats.github(report)
    assert len(github.splitlines()) == len(report.active) and "##[" not in github
    assert all(
        line.startswith(("::error ", "::warning ", "::notice ")) for line in github.splitlines()
    )
    assert all(char.isprintable() or char == "\n" for char in github)
    json.loads(formats.as_json(report).encode())


@pytest.mark.process
def test_a_files_name_is_no_workflow_command_either(tmp_path: Path) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        ours = {"PYTHONPATH": f"{ROOT}:{ROOT / 'workloads/library'}", "GITHUB_ACTIONS": "true"}
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
            env=os.environ | ours,
            capture_output=True,
            text=True,
            check=False,
        )

    for name in ("::error::injected.yaml", "##[error]injected.yaml", "a\n::error::b.yaml"):
        (tmp_path / name).write_text("kind: [Job\n")
    done = command(".")
    assert done.returncode == 1, done.stderr
    assert interpreted(done.stdout) == []
    told = [line for line in done.stderr.splitlines() if "::" in line]
    assert all("injected" not in line.split("::")[1] or "file=" in line for line in told)
    missing = command("b\n::error::c.yaml")
    assert missing.returncode == 2 and interpreted(missing.stderr) == []
