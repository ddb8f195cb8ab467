"""`python -m tests.tools.frameworks`: Hugging Face Trainer and Lightning in a folder of their own.

They are not our dependencies: the callbacks' tests put this folder on PYTHONPATH, and benches
the folder of the libraries that they compare ours with. What our own locks already hold (torch,
numpy, ...) is not installed twice. `... frameworks lock [SET ...]` writes the locks again.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests import support

ROOT = Path(__file__).parents[2]
FRAMEWORKS = "frameworks"
RIVALS = "checkpoint-rivals"
TORCH_CHECKPOINTING = "torch-checkpointing"
TORCHAO = "torchao"
TORCHTITAN = "torchtitan"
TRACKERS = "trackers"
WANTED = {
    FRAMEWORKS: ("transformers", "accelerate", "lightning", "peft"),
    # importlib-metadata 10 lacks a package of its own.
    RIVALS: ("orbax-checkpoint", "torchsnapshot", "importlib-metadata<10"),
    TORCH_CHECKPOINTING: ("torch-checkpointing",),
    TORCHAO: ("torchao",),
    # Without what its checkpoint managers and optimizers do not import: data sets, trackers.
    TORCHTITAN: ("torchtitan", "tyro", "docstring-parser", "spmd-types==0.2.3"),
    # The exporter of traces is there too.
    TRACKERS: (
        "tensorboard",
        "mlflow-skinny",
        "wandb",
        "opentelemetry-exporter-otlp-proto-http",
    ),
}


ALONE = {TORCHAO, TORCHTITAN}
"""Sets whose dependencies are not installed."""


def _find_lock(name: str) -> Path:
    return ROOT / "requirements" / f"{name}.txt"


def folder(name: str = FRAMEWORKS) -> Path:
    content = _find_lock(name).read_bytes() + sys.version.encode()
    key = hashlib.sha256(content).hexdigest()[:16]
    return support.bootstrap().CACHE / f"{name}-{key}"


def install(name: str = FRAMEWORKS) -> Path:
    """Installs a set into the user's cache, once per lock; a killed run leaves no partial set."""
    place = folder(name)
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as half:
            target = ("--python", sys.executable, "--target", f"{half}/site")
            options = ("--quiet", "--no-deps", "--require-hashes", *target)
            subprocess.run(
                [
                    support.bootstrap().find_uv(),
                    "pip",
                    "install",
                    *options,
                    "-r",
                    str(_find_lock(name)),
                ],
                check=True,
            )
            Path(half, "site").rename(place)
    return place


def lock(name: str) -> None:
    own_pins = re.findall(
        r"^([a-z0-9_.-]+)==", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE
    )
    left_out: list[str] = []
    for pin in own_pins:
        left_out += ("--no-emit-package", pin)
    options = [
        "--quiet",
        "--universal",
        "--generate-hashes",
        "--no-header",
        "--no-annotate",
        "--python-version",
        "3.11",
    ]
    target = _find_lock(name)
    if name in ALONE:
        options.append("--no-deps")
    constraint = [
        "-c",
        "requirements/dev.txt",
        "-",
        "-o",
        str(target),
    ]
    command = [
        support.bootstrap().find_uv(),
        "pip",
        "compile",
        *options,
        *left_out,
        *constraint,
    ]
    subprocess.run(
        command,
        cwd=ROOT,
        input="\n".join(WANTED[name]),
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    pins = []
    for line in target.read_text().splitlines():
        if not line.lstrip().startswith("#"):
            pins.append(line)
    target.write_text("\n".join(pins) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["lock"]:
        for wanted in sys.argv[2:] or WANTED:
            lock(wanted)
    else:
        print(install())
