"""The composition root: it has no default environment, and one that is to be destroyed loses its
protections. plan/test_cdktf_cli.py tests its stacks.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.support import needs, ran

pytestmark = pytest.mark.process


def test_no_environment_is_deployed_because_nobody_named_one(tmp_path: Path) -> None:
    """`cdktf deploy '*'` takes every stack that is synthesized."""
    variables = os.environ | {"CDKTF_OUTDIR": str(tmp_path / "out")}
    variables.pop("HOLDFAST_ENV", None)
    done = ran([sys.executable, "-m", "infra.main"], variables=variables)
    assert done.returncode == 2
    assert "fix:     HOLDFAST_ENV=NAME" in done.stderr
    assert not (tmp_path / "out").exists()


@needs("prod")
def test_an_environment_that_is_to_go_loses_its_protections(tmp_path: Path) -> None:
    """The inventories show that other environments keep theirs."""
    variables = {
        "HOLDFAST_ENV": "prod",
        "HOLDFAST_STATE": "local",
        "HOLDFAST_UNPROTECTED": "prod",
    }
    done = ran(
        [sys.executable, "-m", "infra.main"],
        variables=os.environ | variables | {"CDKTF_OUTDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    stacks = "".join(path.read_text() for path in tmp_path.glob("stacks/*-prod/cdk.tf.json"))
    assert '"prevent_destroy": true' not in stacks
    assert '"PREVENT"' not in stacks
    assert '"force_destroy": true' in stacks
