"""`python -m tests.tools.beside PATH...`: our linter, and beside it kube-score and Checkov, which judge hardening.

Exit 1: one of them has found something. Exit 3: one of them cannot be had here.
"""

# Why ours leaves hardening to them: infra/decisions/0067.

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.contract.errors import InputError, Unjudged, run_cli
from holdfast.contract.exit_codes import EXIT_FINDINGS
from tests.plan.isolated import environment
from tests.tools.build import TOOLS, build

Words = list[str]


def commands(files: Sequence[Path]) -> Iterator[tuple[str, Words]]:
    names = [str(file) for file in files]
    yield "holdfast", [sys.executable, "-m", "holdfast", "lint", *names]
    yield "kube-score", [str(build(TOOLS["kube-score"])), "score", "--kubernetes-version", "v1.35", "-o", "ci", *names]
    home = environment("checkov")
    listed = [word for name in names for word in ("-f", name)]
    words = ["--framework", "kubernetes", "--skip-download", "--compact", "--quiet", *listed]
    yield "Checkov", [str(home / "bin" / "python"), str(home / "bin" / "checkov"), *words]


def manifests(paths: Sequence[Path]) -> list[Path]:
    """Files as given, and the YAML below folders."""
    for path in paths:
        if not path.exists():
            raise InputError("no such path", got=path, allowed="files and folders of manifests", fix="correct it")
    found = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.y*ml")))]
    if not found:
        raise InputError("no manifests", got=" ".join(map(str, paths)), allowed="YAML files", fix="name their folder")
    return found


def main(words: Sequence[str]) -> int:
    found = False
    try:
        for name, command in commands(manifests([Path(word) for word in words])):
            print(f"== {name}", flush=True)
            done = subprocess.run(command, env={**os.environ, "PYTHONWARNINGS": "ignore"}, check=False)
            found |= done.returncode != 0
    except (pytest.skip.Exception, pytest.fail.Exception) as error:
        raise Unjudged(str(error)) from error
    return EXIT_FINDINGS if found else 0


if __name__ == "__main__":
    run_cli(lambda: sys.exit(main(sys.argv[1:])))
