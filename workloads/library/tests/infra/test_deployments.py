"""Commands that change the cloud, against a gcloud and a cdktf that are scripts."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from infra.ops import deploy
from tests.infra.samples import EXAMPLE
from tests.support import ROOT, program

# An apply that needs a second to write its state when it is interrupted, as Terraform may.
APPLY = """#!{python} -IS
import signal, sys, time
def finish(*_):
    time.sleep(1)
    open({state!r}, "w").close()
    sys.exit(1)
signal.signal(signal.SIGINT, finish)
print("applying", flush=True)
time.sleep(60)
"""
DEPLOY = """
from pathlib import Path
from infra.ops import deploy
from tests.infra.samples import EXAMPLE
deploy.NODE_COMMANDS = Path({folder!r})
deploy.deploy(EXAMPLE, yes=True)
"""


@pytest.mark.process
def test_an_interrupt_leaves_the_apply_time_to_write_its_state(tmp_path: Path) -> None:
    state = tmp_path / "state"
    program(tmp_path / "cdktf", APPLY.format(python=sys.executable, state=str(state)))
    with subprocess.Popen(
        [sys.executable, "-c", DEPLOY.format(folder=str(tmp_path))],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "applying\n"
        # As a terminal does for Ctrl-C: to the command and all that it has started.
        os.killpg(command.pid, signal.SIGINT)
        code = command.wait()
    assert state.exists()
    assert code == -signal.SIGINT, "what follows an interrupted apply is not begun"


# As gcloud prints it: what it does, unless that is switched off, and then the error.
SECOND_CREATION = f"""#!/bin/sh
case "$*" in
*"buckets create"*)
    case "$*" in
    *--no-user-output-enabled*) ;;
    *) echo "Creating gs://acme-state/..." >&2 ;;
    esac
    echo "ERROR: (gcloud.storage.buckets.create) {deploy.BUCKET_IS_OURS} and you own it." >&2
    exit 1
    ;;
esac
"""


def test_bootstrap_is_repeatable_although_gcloud_says_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "gcloud", SECOND_CREATION)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    environment = replace(EXAMPLE, state_bucket="acme-state")
    assert "--versioning" in list(deploy.bootstrap(environment, dry_run=False))[-1]
