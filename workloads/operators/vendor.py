"""`python -m workloads.operators.vendor`: render the operators' manifests from their Go modules
into `upstream/`.

The module's checksum is the source's proof. Needs go and kubectl, which includes kustomize.
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
# Source: Go module {module} v{version}, folder config/default. Licence: Apache-2.0 (that of the module).
# Checksum of the module: {checksum}
"""


def vendor(go: str, kubectl: str) -> list[Path]:
    """The files that changed. Modules come from the user's Go proxy, checked against the checksum
    database.
    """
    changed: list[Path] = []
    for operator in OPERATORS:
        found = json.loads(
            _run(
                [
                    go,
                    "mod",
                    "download",
                    "-json",
                    f"{operator.module}@v{operator.version}",
                ]
            )
        )
        text = render(operator, Path(found["Dir"]), found["Sum"], kubectl)
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
    """`checksum`: `h1:...`, as go.sum has it."""
    text = _run([kubectl, "kustomize", str(module / "config" / "default")])
    # Some schemas end lines in blanks; nothing in YAML of this kind depends on them.
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    return (
        _HEAD.format(
            module=operator.module,
            version=operator.version,
            checksum=checksum,
        )
        + text
    )


def _run(command: list[str]) -> str:
    program = shutil.which(command[0])
    if program is None:
        raise Unjudged(f"{command[0]} is not on PATH; operators are vendored with Go and kubectl")
    # Not in a folder with a go.mod: that go.mod would decide which version is taken.
    done = subprocess.run(
        [program, *command[1:]],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines()
        raise Unjudged(
            f"{' '.join(command[:3])}: {reason[-1] if reason else f'exit {done.returncode}'}"
        )
    return done.stdout


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with working("render upstream's manifests"):
        changed = vendor("go", "kubectl")
    for path in changed:
        print(path)


if __name__ == "__main__":
    run_cli(main)
