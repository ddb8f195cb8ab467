"""The wheel beside PyTorch alone, in an environment of its own: save, kill, restore."""

import importlib.metadata as metadata
import json
import os
import re
import signal
import subprocess
import sys
import venv
from importlib import import_module
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from holdfast.vocabulary.environment import ENV_KILL_AT, ENV_RUN

# the wheel is built, and torch starts four times
pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[4]
sys.path.insert(0, str(ROOT / ".ci"))
bootstrap = import_module("bootstrap")
ABSENT = ("numpy", "typer", "rich", "google.cloud", "psycopg", "pyarrow", "infra", "monitoring")

# Tensors over 4 MiB: such ones are read straight into their memory.
TRAINER = """
import os, sys
import torch
from holdfast.checkpoint import Checkpointer

torch.manual_seed(0)
model = torch.nn.Linear(1200, 1200)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
state = {"model": model, "optimizer": optimizer}
with Checkpointer(sys.argv[1], state, run=os.environ["HOLDFAST_RUN"], every=2) as ckpt:
    for step in range(ckpt.step, 12):
        optimizer.zero_grad()
        model(torch.randn(2, 1200)).square().mean().backward()
        optimizer.step()
        ckpt.tick(step + 1)
        print("step", step + 1, flush=True)
print("ended with", sum(float(p.double().sum()) for p in model.parameters()).hex())
"""


def closure(*names: str) -> set[str]:
    """These distributions, and all that they need here."""
    found = set[tuple[str, ...]]()
    waiting = [Requirement(name) for name in names]
    while waiting:
        one = waiting.pop()
        key = (one.name, *sorted(one.extras))
        if key not in found:
            found.add(key)
            needed = [Requirement(line) for line in metadata.requires(one.name) or []]
            chosen = [{"extra": extra} for extra in ("", *one.extras)]
            waiting += [
                each for each in needed if not each.marker or any(map(each.marker.evaluate, chosen))
            ]
    return {name for name, *_ in found}


def link(distribution: str, site: Path) -> None:
    """Its top-level files and folders, as links: gigabytes need not be copied."""
    for file in metadata.files(distribution) or []:
        top = file.parts[0]
        source = Path(str(metadata.distribution(distribution).locate_file(top)))
        if top != ".." and source.exists() and not (site / top).exists():
            (site / top).symlink_to(source)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel, what the wheel's core declares, and
    PyTorch.
    """
    built = tmp_path_factory.mktemp("wheel")
    folder = tmp_path_factory.mktemp("bare")
    build = [
        sys.executable,
        str(ROOT / ".ci" / "wheel.py"),
        "--out-dir",
        str(built),
    ]
    subprocess.run(build, check=True, timeout=200)
    (wheel,) = built.glob("*.whl")
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    options = [
        "--quiet",
        "--offline",
        "--no-deps",
        "--python",
        str(python),
    ]
    subprocess.run(
        [
            bootstrap.find_uv(),
            "pip",
            "install",
            *options,
            str(wheel),
        ],
        check=True,
        timeout=200,
    )
    (site,) = folder.glob("lib/python3.*/site-packages")
    (described,) = site.glob("holdfast_gke-*.dist-info/METADATA")
    declared = []
    for line in re.findall(r"^Requires-Dist: (.*)$", described.read_text(), re.MULTILINE):
        declared.append(Requirement(line))
    for name in closure(*(one.name for one in declared if not one.marker), "torch"):
        link(name, site)
    return python


def run(
    python: Path, folder: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        ENV_RUN: "strange",
        **variables,
    }
    return subprocess.run(
        [python, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_a_script_that_is_killed_beside_torch_alone_ends_in_the_bits_of_a_quiet_run(
    python: Path, tmp_path: Path
) -> None:
    """And though files beside the script and in the current folder are called as modules are."""
    beside = tmp_path / "scripts"
    here = tmp_path / "here"
    for folder in (beside, here):
        folder.mkdir()
        (folder / "secrets.py").write_text("API_KEY = 'none of the standard library'")
    (here / "argparse.py").write_text("raise ImportError('another argparse')")
    (beside / "train.py").write_text(TRAINER)

    def train(url: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return run(python, here, str(beside / "train.py"), url, **variables)

    # A save begins when the one before it is durable.
    killed = train("store", **{ENV_KILL_AT: "stage.end:2"})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    ended = train("store"), train("whole")
    assert [one.returncode for one in ended] == [0, 0], [one.stderr for one in ended]
    assert "restored step 2" in ended[0].stdout
    assert len({one.stdout.splitlines()[-1] for one in ended}) == 1


def test_the_wheel_alone_carries_its_types_and_its_command(python: Path, tmp_path: Path) -> None:
    """And nothing of this repository or of the extras is there, or the test above would prove
    nothing.
    """
    program = (
        "import importlib.metadata as m, importlib.util as u, json, holdfast\nfrom pathlib import"
        " Path\ndef there(name):\n    try: return u.find_spec(name) is not None\n    except"
        " ModuleNotFoundError: return False\ncommand, ="
        " m.distribution('holdfast-gke').entry_points\ntyped ="
        " Path(holdfast.__file__).with_name('py.typed').is_file()\nprint(json.dumps([holdfast.__file__,"
        f" [*filter(there, {ABSENT!r})], typed, command.name, callable(command.load())]))"
    )
    result = run(python, tmp_path, "-c", program)
    assert result.returncode == 0, result.stderr
    home, *found = json.loads(result.stdout)
    assert Path(home).is_relative_to(python.parents[1]) and found == [
        [],
        True,
        "holdfast",
        True,
    ]


def test_the_command_without_an_extra_names_the_extra(python: Path, tmp_path: Path) -> None:
    result = run(python, tmp_path, "-c", "from holdfast.cli import main; main()")
    assert result.returncode == 2
    assert "fix:     pip install 'holdfast-gke[all]'" in result.stderr
