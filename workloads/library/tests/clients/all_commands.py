"""Runs every command that asks a cluster against every kubeconfig of a folder, in one process: the
imports take longer than all the answers.

Usage: python -m workloads.library.tests.clients.all_commands FOLDER. Prints a JSON object:
kubeconfig -> command -> exit code and standard error. KUBECONFIG names the file that is replaced
each time.
"""

import io
import json
import os
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from holdfast.commands import app as library
from holdfast.support.command_line import run_app
from workloads.__main__ import app as platform

SAMPLE = Path("workloads/rendered/example/samples/training.yaml").resolve()
COMMANDS = {
    "new-job": ["new-job", "run", "--image", "trainer", "--", "python", "train.py"],
    "try": ["try", "--yes"],
    "lint": ["lint", "manifest.yaml"],
    "submit": ["submit", "manifest.yaml", "--yes"],
    "submit --dry-run": ["submit", "manifest.yaml", "--dry-run"],
    "list": ["list"],
    "logs JOB": ["logs", "run"],
    "logs JOB --follow": ["logs", "run", "-f"],
    "stop JOB": ["stop", "run", "--yes"],
    "resume JOB": ["resume", "run"],
    "shell JOB": ["shell", "run"],
    "explain JOB": ["explain", "run"],
    "explain JOB --follow": ["explain", "run", "--follow"],
    "drill": ["drill", "--target", "cluster", "--context", "c", "--namespace", "n"],
    "doctor": ["doctor", "example"],
    "apply": ["apply", "example", "--yes"],
}
COMMANDS["drill"] += ["--selector", "a=b", "--yes"]
OF_THE_PLATFORM = ("doctor", "apply")


def end(name: str) -> tuple[int, str]:
    """Run a command and return its exit code and standard error."""
    app = platform if name in OF_THE_PLATFORM else library
    errors = io.StringIO()
    code = 0
    with redirect_stderr(errors), redirect_stdout(io.StringIO()):
        try:
            run_app(app, COMMANDS[name])
        except SystemExit as error:
            code = int(error.code or 0)
    return code, errors.getvalue()


def main() -> None:
    folder = Path(sys.argv[1])
    outcomes: dict[str, dict[str, tuple[int, str]]] = {}
    shutil.copy(SAMPLE, folder / "manifest.yaml")
    os.chdir(folder)
    for kubeconfig in sorted(folder.glob("*.kubeconfig")):
        shutil.copy(kubeconfig, os.environ["KUBECONFIG"])
        outcomes[kubeconfig.stem] = {name: end(name) for name in COMMANDS}
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
