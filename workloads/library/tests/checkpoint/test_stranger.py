"""A stranger's own script in a folder of his own: what lies beside it must not matter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SCRIPT = """
import sys, torch
from holdfast.checkpoint import Checkpointer

state = {"w": torch.zeros(4)}
with Checkpointer(sys.argv[1], state, run="r", every=1) as ckpt:
    print("began at", ckpt.step)
    for step in range(ckpt.step, 3):
        state["w"] += 1
        ckpt.tick(step + 1)
    assert ckpt.wait(), ckpt.failure
"""


def test_files_beside_the_script_or_in_the_current_folder_do_not_shadow_modules(tmp_path: Path) -> None:
    beside, here = tmp_path / "scripts", tmp_path / "here"
    for folder in (beside, here):
        (folder / "infra").mkdir(parents=True)
        (folder / "infra" / "__init__.py").write_text("raise ImportError('another infra')")
        (folder / "secrets.py").write_text("API_KEY = 'none of the standard library'")
    (here / "argparse.py").write_text("raise ImportError('another argparse')")
    (beside / "train.py").write_text(SCRIPT)
    library = str(Path(__file__).parents[4] / "workloads" / "library")
    for began in (0, 3):
        ended = subprocess.run(
            [sys.executable, "-B", str(beside / "train.py"), str(tmp_path / "url")],
            cwd=here,
            env=os.environ | {"PYTHONPATH": library},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert f"began at {began}" in ended.stdout
