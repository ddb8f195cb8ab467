"""Tests that scripts, programs and images are judged as a shell and a kubelet judge them."""

from textwrap import indent

import pytest

from workloads.library.tests.lint.defects import find_rules


def write_script(script: str, shell: str = "bash", image: str = "registry.example/a:1") -> str:
    """Returns a pod whose init container runs a script."""
    return f"""\
apiVersion: v1
kind: Pod
metadata:
  name: a
  namespace: research
spec:
  containers:
  - name: main
    image: registry.example/a:1
  initContainers:
  - name: prepare
    image: {image}
    command:
    - {shell}
    - -c
    - |
{indent(script, "      ")}
"""


@pytest.mark.parametrize(
    "script",
    [
        'echo "it\'s done"',
        "echo it\\'s done",
        "# it's done\necho done",
        "python -c 'print(\"a\")'",
        'echo "$(cat "/a b")"',
        "cat <<END\nit's done\nEND",
        "for i in 1 2; do echo $i; done",
        "for i in 1 2\ndo\n  echo $i\ndone > /tmp/out",
        "if [ -f /a ]; then echo a; fi",
        "if true; then (echo a; echo b) fi",
        'case "$1" in\n  a) echo a;;\nesac',
        "set -euo pipefail\npython train.py",
        "set -e; python train.py",
        "set -ex && python train.py",
        "python a.py &\npid=$!\nwait $pid",
        "server & \nsleep infinity",
        "echo done",
    ],
)
def test_correct_scripts_are_parsed(script: str) -> None:
    assert not find_rules(write_script(script)) & {"HF794", "HF795", "HF797", "HF837", "HF838"}


@pytest.mark.parametrize(
    "script",
    [
        "echo 'it is done",
        'echo "done',
        "for i in 1 2; do echo $i",
        "if [ -f /a ]; then echo a",
        "set -euo pipefail python train.py",
        "export OUT = /out",
    ],
)
def test_broken_scripts_are_found(script: str) -> None:
    assert "HF794" in find_rules(write_script(script))


@pytest.mark.parametrize(
    ("shell", "image", "is_found"),
    [
        ("sh", "registry.example/a:1", True),
        ("bash", "registry.example/a:1", False),
        ("sh", "alpine:3.20", False),
    ],
)
def test_sh_takes_no_bash_syntax(shell: str, image: str, is_found: bool) -> None:
    rules = find_rules(write_script("[[ -f /a ]] && exit 1; echo a", shell, image))
    assert ("HF795" in rules) is is_found


@pytest.mark.parametrize(
    ("script", "image", "is_found"),
    [
        ("curl -f http://a", "busybox:1.36", True),
        ("until curl -f http://a; do sleep 1; done", "busybox:1.36", True),
        ("wget http://a", "busybox:1.36", False),
        ("echo curl", "busybox:1.36", False),
        ("apk add curl && curl -f http://a", "alpine:3.20", False),
        ("curl -f http://a", "registry.example/busybox:1.36", False),
        ("gsutil cp a gs://b", "python:3.12-slim", True),
        ("python3 a.py", "python:3.12-slim", False),
    ],
)
def test_image_has_programs(script: str, image: str, is_found: bool) -> None:
    assert ("HF796" in find_rules(write_script(script, "sh", image))) is is_found


@pytest.mark.parametrize(
    ("script", "is_found"),
    [
        ("kubclt get pods", False),
        ("kubectll get pods", True),
        ("pythn a.py", True),
        ("python2 a.py", False),
        ("print a", False),
    ],
)
def test_misspelt_programs_are_found(script: str, is_found: bool) -> None:
    assert ("HF837" in find_rules(write_script(script))) is is_found


def test_continued_text_hides_no_closing_quote() -> None:
    script = 'python -c "import a; \\\na.run()"\necho "done; source of errors: none"'
    assert "HF795" not in find_rules(write_script(script, "sh"))
