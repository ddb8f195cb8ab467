"""The wheel in an environment of its own, beside PyTorch and nothing else: save, kill, restore."""

import importlib.metadata as metadata
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[4]
ABSENT = ("numpy", "typer", "rich", "google.cloud", "psycopg", "pyarrow", "infra", "monitoring")

# Tensors over 4 MiB: such ones are read straight into their memory.
TRAINER = """
import os, signal, sys
import torch
from holdfast.checkpoint import Checkpointer

torch.manual_seed(0)
model = torch.nn.Linear(1200, 1200)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
with Checkpointer(sys.argv[1], {"model": model, "optimizer": optimizer}, run="r", every=2) as ckpt:
    print("began at", ckpt.step)
    for step in range(ckpt.step, 6):
        optimizer.zero_grad()
        model(torch.randn(2, 1200)).square().mean().backward()
        optimizer.step()
        ckpt.tick(step + 1)
        if step + 1 == int(sys.argv[2]):
            assert ckpt.wait()
            os.kill(os.getpid(), signal.SIGKILL)
print("ended with", sum(float(p.double().sum()) for p in model.parameters()).hex())
"""


def requirements(distribution: str) -> Iterator[str]:
    """Names that it needs here, without extras."""
    for line in metadata.requires(distribution) or []:
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            yield needed.name
            for extra in needed.extras:
                yield from (
                    Requirement(more).name
                    for more in metadata.requires(needed.name) or []
                    if re.search(rf"extra == .{re.escape(extra)}.", more)
                )


def closure(*distributions: str) -> set[str]:
    found: set[str] = set()
    waiting = list(distributions)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += requirements(name)
    return found


def link(distribution: str, site: Path) -> None:
    """Its top-level files and folders, as links: gigabytes need not be copied."""
    for file in metadata.files(distribution) or []:
        top = file.parts[0]
        source = Path(str(metadata.distribution(distribution).locate_file(top)))
        if top != ".." and source.exists() and not (site / top).exists():
            (site / top).symlink_to(source)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with the wheel, what the wheel's core declares, and PyTorch."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, str(ROOT / ".ci" / "wheel.py"), "--out-dir", str(folder / "wheel")]
    subprocess.run(build, check=True, timeout=200)
    venv.create(folder / "env", symlinks=True, with_pip=False)
    (site,) = (folder / "env").glob("lib/python3.*/site-packages")
    (wheel,) = (folder / "wheel").glob("*.whl")
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(site)], check=True)
    (described,) = site.glob("holdfast-*.dist-info/METADATA")
    core = re.findall(r"^Requires-Dist: ([^;\n]*)$", described.read_text(), re.MULTILINE)
    assert [Requirement(line).name for line in core] == ["google-crc32c"]
    for name in closure("torch", *(Requirement(line).name for line in core)):
        link(name, site)
    return folder / "env" / "bin" / "python"


def run(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(
        [python, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


def test_the_installed_wheel_saves_is_killed_and_restores_beside_torch_alone(python: Path, tmp_path: Path) -> None:
    script, url = tmp_path / "trainer.py", str(tmp_path / "url")
    script.write_text(TRAINER)
    killed = run(python, tmp_path, str(script), url, "4")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = run(python, tmp_path, str(script), url, "0")
    assert resumed.returncode == 0, resumed.stderr
    assert "began at 4" in resumed.stdout and "restored step 4" in resumed.stdout
    whole = run(python, tmp_path, str(script), str(tmp_path / "whole"), "0")
    assert whole.stdout.splitlines()[-1] == resumed.stdout.splitlines()[-1] != ""


def test_nothing_of_the_extras_or_of_this_repository_is_importable_there(python: Path, tmp_path: Path) -> None:
    """Or the test above would prove nothing."""
    program = (
        "import importlib.util as u, json, sys, holdfast\n"
        "def there(name):\n"
        "    try: return u.find_spec(name) is not None\n"
        "    except ModuleNotFoundError: return False\n"
        f"print(json.dumps([holdfast.__file__, *filter(there, {ABSENT!r})]))"
    )
    result = run(python, tmp_path, "-c", program)
    assert result.returncode == 0, result.stderr
    (home,) = json.loads(result.stdout)
    assert Path(home).is_relative_to(python.parents[1])


def test_the_command_without_an_extra_names_the_extra(python: Path, tmp_path: Path) -> None:
    result = run(python, tmp_path, "-c", "from holdfast.cli import main; main()")
    assert result.returncode == 2
    assert "make setup" in result.stderr
    assert ".whl[all]" in result.stderr  # by the bare name, an index may give another package


def test_the_wheel_carries_its_types_its_command_and_every_extra(python: Path, tmp_path: Path) -> None:
    program = (
        "import json, holdfast, importlib.metadata as m\n"
        "from pathlib import Path\n"
        "found = m.distribution('holdfast')\n"
        "command, = found.entry_points\n"
        "typed = Path(holdfast.__file__).with_name('py.typed').is_file()\n"
        "print(json.dumps([typed, command.name, callable(command.load()), found.metadata.get_all('Provides-Extra'),"
        " found.requires]))"
    )
    result = run(python, tmp_path, "-c", program)
    assert result.returncode == 0, result.stderr
    typed, command, callable_, extras, requires = json.loads(result.stdout)
    declared = tomllib.loads((ROOT / "workloads" / "library" / "pyproject.toml").read_text())["project"]
    assert (typed, [command], callable_) == (True, list(declared["scripts"]), True)
    assert sorted(extras) == sorted(declared["optional-dependencies"])
    needed = [Requirement(line) for line in requires]
    for extra in extras:  # an extra that brings nothing would install, and fail in the pod
        assert any(one.marker and one.marker.evaluate({"extra": extra}) for one in needed), extra
