"""Renders the operators' manifests from their Go modules into `upstream/`.

The command is `python -m workloads.operators.vendor`. The module's checksum proves the source. It
needs go, and kubectl, which includes kustomize.
"""

import argparse
import json
import re
import shutil
import subprocess
from pathlib import Path

from holdfast.support.errors import Unjudged, run_cli
from holdfast.support.progress import working
from workloads.operators.catalogue import OPERATORS, Operator

_HEAD = """\
# Rendered by `python -m workloads.operators.vendor`; do not edit.
# Source: Go module {module} v{version}, folder config/default. \
License: Apache-2.0 (that of the module).
# Checksum of the module: {checksum}
"""


def vendor(go: str, kubectl: str) -> list[Path]:
    """Renders the manifests. Returns the files that changed.

    Modules come from the user's Go proxy, checked against the checksum database.
    """
    changed: list[Path] = []
    for operator in OPERATORS:
        version = f"{operator.module}@v{operator.version}"
        module = json.loads(_run([go, "mod", "download", "-json", version]))
        text = render(operator, Path(module["Dir"]), module["Sum"], kubectl)
        if not operator.file.exists() or operator.file.read_text(encoding="utf-8") != text:
            operator.file.write_text(text, encoding="utf-8")
            changed.append(operator.file)
    return changed


def render(
    operator: Operator,
    module: Path,
    checksum: str,
    kubectl: str,
) -> str:
    """Renders one manifest; `checksum` is `h1:...`, as in go.sum."""
    text = _run([kubectl, "kustomize", str(module / "config" / "default")])
    # Some schemas end lines in blanks; nothing in YAML of this kind depends on them.
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    head = _HEAD.format(module=operator.module, version=operator.version, checksum=checksum)
    return head + text


def _run(command: list[str]) -> str:
    program = shutil.which(command[0])
    if program is None:
        raise Unjudged(f"{command[0]} is not on PATH; operators are vendored with Go and kubectl")
    process = subprocess.run(
        [program, *command[1:]],
        capture_output=True,
        text=True,
        check=False,
        # In a folder with a go.mod, that file would decide the version.
        cwd="/",
    )
    if process.returncode:
        lines = (process.stderr or process.stdout).strip().splitlines()
        reason = lines[-1] if lines else f"exit {process.returncode}"
        raise Unjudged(f"{' '.join(command[:3])}: {reason}")
    return process.stdout


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with working("render upstream's manifests"):
        changed = vendor("go", "kubectl")
    for path in changed:
        print(path)


if __name__ == "__main__":
    run_cli(main)
