"""The composition root: no environment by default, and what one loses that is to go. Its stacks: plan/test_cdktf_cli.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import needs, ran

pytestmark = pytest.mark.process


def test_no_environment_is_deployed_because_nobody_named_one(tmp_path: Path) -> None:
    """`cdktf deploy '*'` takes every stack that is synthesised."""
    variables = {k: v for k, v in os.environ.items() if k != "HOLDFAST_ENV"} | {"CDKTF_OUTDIR": str(tmp_path / "out")}
    done = ran([sys.executable, "-m", "infra.main"], variables=variables)
    assert done.returncode == 2 and "fix:     HOLDFAST_ENV=NAME" in done.stderr
    assert not (tmp_path / "out").exists()


@needs("prod")
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs")
def test_an_environment_that_is_to_go_loses_its_protections_and_only_bindings_in_use_are_loaded(tmp_path: Path) -> None:
    """All bindings take 500 MB, in the process of Node. That others keep their protections shows in the inventories."""
    # A process between: what is measured of a child of this one includes the memory that pytest holds when it forks.
    code = (
        "import resource, subprocess, sys; subprocess.run([sys.executable, '-m', 'infra.main'], check=True); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    variables = os.environ | {"HOLDFAST_ENV": "prod", "HOLDFAST_STATE": "local", "CDKTF_OUTDIR": str(tmp_path)}
    variables |= {"HOLDFAST_UNPROTECTED": "prod"}
    variables["NODE_OPTIONS"] = "--max-old-space-size=4096"  # as the cdktf command line sets it
    peak_kib = int(subprocess.check_output([sys.executable, "-c", code], env=variables, text=True))
    assert peak_kib < 300 * 1024
    stacks = "".join(path.read_text() for path in tmp_path.glob("stacks/*-prod/cdk.tf.json"))
    assert '"prevent_destroy": true' not in stacks and '"PREVENT"' not in stacks and '"force_destroy": true' in stacks
