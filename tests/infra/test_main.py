"""The composition root: which stacks there are, and that none is left out in silence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.contract import names
from infra.environments import load
from infra.ops.synth import synthesise
from tests.support import needs

pytestmark = pytest.mark.process


def test_the_stacks_and_their_order_are_those_of_the_contract(tmp_path: Path) -> None:
    stacks = synthesise("example", tmp_path, local_state=True)
    assert list(stacks) == names.stacks("example")
    manifest = json.loads((tmp_path / "manifest.json").read_text())["stacks"]
    for later, earlier in zip(names.stacks("example")[1:], names.stacks("example"), strict=False):
        assert manifest[later]["dependencies"] == [earlier]


def test_without_monitoring_nothing_is_synthesised(tmp_path: Path) -> None:
    """A platform without alerts looks healthy until it matters."""
    hide = "import sys, runpy; sys.modules['monitoring.stack'] = None; "
    code = hide + "runpy.run_module('infra.main', run_name='__main__')"
    variables = os.environ | {"HOLDFAST_ENV": "example", "CDKTF_OUTDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "monitoring.stack" in done.stderr
    assert not (tmp_path / "stacks").exists()


def test_no_environment_is_deployed_because_nobody_named_one(tmp_path: Path) -> None:
    """`cdktf deploy '*'` takes every stack that is synthesised."""
    variables = {k: v for k, v in os.environ.items() if k != "HOLDFAST_ENV"} | {"CDKTF_OUTDIR": str(tmp_path / "out")}
    command = [sys.executable, "-m", "infra.main"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "fix:     HOLDFAST_ENV=NAME" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs")
def test_a_synthesis_loads_the_bindings_that_it_uses(tmp_path: Path) -> None:
    """All of them take 500 MB, in the process of Node."""
    # A process between: what is measured of a child of this one includes the memory that pytest holds when it forks.
    code = (
        "import resource, subprocess, sys; subprocess.run([sys.executable, '-m', 'infra.main'], check=True); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    variables = os.environ | {"HOLDFAST_ENV": "example", "HOLDFAST_STATE": "local", "CDKTF_OUTDIR": str(tmp_path)}
    variables["NODE_OPTIONS"] = "--max-old-space-size=4096"  # as the cdktf command line sets it
    peak_kib = int(subprocess.check_output([sys.executable, "-c", code], env=variables, text=True))
    assert peak_kib < 300 * 1024


@needs("prod")
def test_the_environment_that_is_to_go_and_no_other_loses_its_protections(tmp_path: Path) -> None:
    variables = os.environ | {"HOLDFAST_STATE": "local", "HOLDFAST_ENV": "prod", "CDKTF_OUTDIR": str(tmp_path)}
    for lifted, protected in (("dev", True), ("prod", False)):
        subprocess.run(
            [sys.executable, "-m", "infra.main"], env=variables | {"HOLDFAST_UNPROTECTED": lifted}, check=True
        )
        stacks = "".join(path.read_text() for path in tmp_path.glob("stacks/*-prod/cdk.tf.json"))
        assert ('"prevent_destroy": true' in stacks) is protected
        assert ('"PREVENT"' in stacks) is protected and ('"force_destroy": true' in stacks) is not protected


@needs("prod")
def test_an_environment_does_not_depend_on_the_process_that_loads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    prod = load("prod")
    monkeypatch.setenv("HOLDFAST_STATE", "local")
    assert prod.stack_arguments(local_state=False)["placeholders"]
