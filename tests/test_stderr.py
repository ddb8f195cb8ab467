"""Standard error holds what the command says, and nothing of the libraries under it."""

import os
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, ran
from workloads.library.tests import sample

pytestmark = pytest.mark.process
# Each imports what is heavy: numpy, ruamel, the client of Kubernetes, PyTorch, altair, psycopg.
# test_pages.py runs others.
COMMANDS = {
    "holdfast place prices": (0, "prices of "),
    "holdfast submit {rendered}/samples/training.yaml "
    "--platform {rendered}/platform.json --dry-run": (
        0,
        "",
    ),
    "holdfast checkpoints list {folder}/store": (0, ""),
    "holdfast batch status a --database postgresql://nobody@127.0.0.1:1/none?x=y": (2, "error:   "),
    "holdfast report --events {folder}/events --out {folder}/report.html": (0, "Next: open "),
    "holdfast export --kubeconfig {folder}/none": (3, "could not judge: no cluster in "),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    from holdfast.checkpoint import Checkpointer

    path = tmp_path_factory.mktemp("stderr")
    sample.write_watched_job(path / "events")
    with Checkpointer(
        path / "store",
        {"model": {"a": torch.zeros(4)}},
        run="run",
        every=1,
    ) as ckpt:
        ckpt.tick(1)
    return path


@pytest.mark.parametrize("words", COMMANDS)
def test_no_library_warns(words: str, folder: Path) -> None:
    code, line = COMMANDS[words]
    variables = {}
    for name, value in os.environ.items():
        if name not in ("PYTHONWARNINGS", "KUBECONFIG"):
            variables[name] = value
    command = [
        sys.executable,
        "-m",
        *words.format(folder=folder, rendered="workloads/rendered/example").split(),
    ]
    done = ran(command, ROOT, variables)
    assert done.returncode == code, done.stderr
    for word in ("warn", "deprecat", "traceback", "jsii"):
        assert word not in done.stderr.lower(), done.stderr
    assert line in done.stderr, done.stderr
    assert bool(line) == bool(done.stderr), done.stderr
