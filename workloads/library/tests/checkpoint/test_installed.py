"""Save, kill and restore in an environment with only the wheel and PyTorch."""

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
from tests import support

# The wheel is built, and torch starts four times.
pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[4]
sys.path.insert(0, str(ROOT / ".ci"))
bootstrap = import_module("bootstrap")
ABSENT = ("numpy", "typer", "rich", "google.cloud", "psycopg", "pyarrow", "infra", "monitoring")

# Tensors over 4 MiB are read directly into their memory.
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


def list_dependencies(*names: str) -> set[str]:
    """Return these distributions, and all that they need on this machine."""
    visited: set[tuple[str, ...]] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        requirement = waiting.pop()
        key = (requirement.name, *sorted(requirement.extras))
        if key in visited:
            continue
        visited.add(key)
        extras = ("", *requirement.extras)
        for line in metadata.requires(requirement.name) or []:
            dependency = Requirement(line)
            if applies(dependency, extras):
                waiting.append(dependency)
    return {name for name, *_ in visited}


def applies(requirement: Requirement, extras: tuple[str, ...]) -> bool:
    marker = requirement.marker
    if marker is None:
        return True
    return any(marker.evaluate({"extra": extra}) for extra in extras)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel, its core requirements and PyTorch."""
    wheels = tmp_path_factory.mktemp("wheel")
    folder = tmp_path_factory.mktemp("bare")
    build = [
        sys.executable,
        str(ROOT / ".ci" / "wheel.py"),
        "--out-dir",
        str(wheels),
    ]
    subprocess.run(build, check=True, timeout=200)
    (wheel,) = wheels.glob("*.whl")
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
    (metadata_file,) = site.glob("holdfast_gke-*.dist-info/METADATA")
    names = ["torch"]
    for line in re.findall(r"^Requires-Dist: (.*)$", metadata_file.read_text(), re.MULTILINE):
        requirement = Requirement(line)
        if not requirement.marker:
            names.append(requirement.name)
    for name in list_dependencies(*names):
        support.link_distribution(name, site)
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


def test_killed_script_with_torch_alone_ends_in_the_same_bits(python: Path, tmp_path: Path) -> None:
    """Files next to the script and in the current folder have names of modules."""
    scripts = tmp_path / "scripts"
    current = tmp_path / "current"
    for folder in (scripts, current):
        folder.mkdir()
        (folder / "secrets.py").write_text("API_KEY = 'none of the standard library'")
    (current / "argparse.py").write_text("raise ImportError('another argparse')")
    (scripts / "train.py").write_text(TRAINER)

    def train(url: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return run(python, current, str(scripts / "train.py"), url, **variables)

    # The second save starts once the first is durable.
    killed = train("store", **{ENV_KILL_AT: "stage.end:2"})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = train("store")
    uninterrupted = train("whole")
    for process in (resumed, uninterrupted):
        assert process.returncode == 0, process.stderr
    assert "restored step 2" in resumed.stderr
    assert resumed.stdout.splitlines()[-1] == uninterrupted.stdout.splitlines()[-1]


INSPECTION = """
import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path

import holdfast


def is_installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


(command,) = importlib.metadata.distribution("holdfast-gke").entry_points
home = Path(holdfast.__file__)
facts = {
    "home": str(home),
    "foreign": [name for name in sys.argv[1:] if is_installed(name)],
    "typed": home.with_name("py.typed").is_file(),
    "command": command.name,
    "callable": callable(command.load()),
}
print(json.dumps(facts))
"""


def test_wheel_alone_has_its_types_and_its_command(python: Path, tmp_path: Path) -> None:
    """Nothing of this repository or of the extras is installed, so the test above is valid."""
    result = run(python, tmp_path, "-c", INSPECTION, *ABSENT)
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert Path(facts.pop("home")).is_relative_to(python.parents[1])
    assert facts == {
        "foreign": [],
        "typed": True,
        "command": "holdfast",
        "callable": True,
    }


def test_command_without_an_extra_names_the_extra(python: Path, tmp_path: Path) -> None:
    result = run(python, tmp_path, "-c", "from holdfast.cli import main; main()")
    assert result.returncode == 2
    assert re.search(
        r"^  fix:     pip install '/\S+/holdfast_gke-\S+\.whl\[all\]'$", result.stderr, re.M
    )
