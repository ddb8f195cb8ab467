"""`python -m tests.tools.beside PATH...`: the linter of this platform, then kube-score and Checkov, which judge hardening.

YAML files are manifests; JSON files are plans, as `make plan` leaves them in out/plan/ENV, and only Checkov judges them.

Exit 1: one of them has found something. Exit 3: one of them cannot be had here.
"""

# Why the linter leaves hardening to them: infra/decisions/0067.

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
    names = [str(file) for file in files if file.suffix != ".json"]
    if names:
        yield "holdfast", [sys.executable, "-m", "holdfast", "lint", *names]
        words = ["score", "--kubernetes-version", "v1.35", "-o", "ci"]
        yield "kube-score", [str(build(TOOLS["kube-score"])), *words, *names]
    home = environment("checkov")
    listed = [word for file in files for word in ("-f", str(file))]
    kinds = [*(["kubernetes"] if names else []), *(["terraform_plan"] if len(names) < len(files) else [])]
    words = ["--framework", *kinds, "--skip-download", "--compact", "--quiet", *listed]
    yield "Checkov", [str(home / "bin" / "python"), str(home / "bin" / "checkov"), *words]


def manifests(paths: Sequence[Path]) -> list[Path]:
    """Files as given, the YAML below folders, and the plans in them."""
    for path in paths:
        if not path.exists():
            raise InputError(
                "no such path", got=path, allowed="files and folders of manifests or plans", fix="correct it"
            )
    found = [
        file
        for path in paths
        for file in ([path] if path.is_file() else sorted([*path.rglob("*.y*ml"), *path.glob("*.json")]))
    ]
    if not found:
        raise InputError(
            "no manifests",
            got=" ".join(map(str, paths)),
            allowed="YAML files, or JSON of plans",
            fix="name their folder",
        )
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
