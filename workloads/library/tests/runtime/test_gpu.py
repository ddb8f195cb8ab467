"""Tests of the GPU check, against a substitute for the driver's library that is compiled here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.runtime import gpu
from holdfast.support.errors import InputError
from tests import support
from workloads.library.tests.training.runs import Run

STUB = r"""
int cuInit(unsigned flags) { return INIT; }
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) {
    name[0] = 'L';
    name[1] = '4';
    name[2] = 0;
    return 0;
}
int cuDeviceTotalMem_v2(unsigned long *bytes, int device) {
    *bytes = 24ul << 30;
    return MEMORY_ERROR;
}
"""
CHECK = """
import sys
from pathlib import Path
from holdfast.runtime import gpu
sys.exit(gpu.exit_code(gpu.start_check(devices=Path(sys.argv[1]), torch_cuda="13.2")))
"""


def compile_library(
    folder: Path,
    *,
    version: int = 13000,
    count: int = 2,
    init: int = 0,
    memory_error: int = 0,
) -> dict[str, str]:
    """Compiles a driver library and returns the environment in which it is found."""
    compiler = shutil.which("cc")
    support.require(compiler, "a C compiler builds the substitute for the driver's library")
    folder.mkdir(exist_ok=True)
    (folder / "stub.c").write_text(STUB)
    definitions = [
        f"-DVERSION={version}",
        f"-DCOUNT={count}",
        f"-DINIT={init}",
        f"-DMEMORY_ERROR={memory_error}",
    ]
    command = [
        str(compiler),
        "-shared",
        "-fPIC",
        "-nostdlib",
        *definitions,
    ]
    subprocess.run(
        [
            *command,
            "-o",
            folder / gpu.LIBRARY,
            folder / "stub.c",
        ],
        check=True,
    )
    return {"LD_LIBRARY_PATH": str(folder)}


def run_check(env: dict[str, str], devices: Path) -> tuple[int, str]:
    env = os.environ | {"LD_LIBRARY_PATH": "", "HOLDFAST_GPUS": "2"} | env
    command = [sys.executable, "-c", CHECK, devices]
    check = subprocess.run(
        command,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in check.stdout + check.stderr, check
    # Outside of a pod the log is text on standard error.
    return check.returncode, check.stdout + check.stderr


ALL = ("nvidiactl", "nvidia0", "nvidia1")


@pytest.mark.process
@pytest.mark.parametrize(
    ("driver", "device_names", "code", "message"),
    [
        ({}, ALL, 0, "2 GPU: L4 (24.0 GiB), L4 (24.0 GiB); CUDA 13.0"),
        ({}, ("nvidiactl",), 2, "no device /dev/nvidia*"),
        (None, ALL, 2, "LD_LIBRARY_PATH=/usr/local/nvidia/lib64"),
        ({"version": 12020}, ALL, 2, "a driver for CUDA 12.2, and torch built with CUDA 13.2"),
        ({"init": 100}, ALL, 2, "cuInit answered 100"),
        ({"init": 999}, ALL, 75, "a broken or busy GPU"),
        ({"count": 1}, ALL, 75, "1 of 2 promised GPUs answer"),
        ({"memory_error": 214}, ALL, 75, "answered 214"),
    ],
)
def test_a_wrong_image_or_pool_is_bad_input_and_a_broken_machine_is_not(
    tmp_path: Path,
    driver: dict[str, int] | None,
    device_names: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    devices = tmp_path / "dev"
    devices.mkdir()
    for name in device_names:
        (devices / name).touch()
    env = {} if driver is None else compile_library(tmp_path / "lib", **driver)
    exit_code, output = run_check(env, devices)
    assert exit_code == code, output
    assert message in output


def test_the_cpu_is_never_used_if_a_gpu_was_promised() -> None:
    assert gpu.start_check() is None
    assert gpu.exit_code(None) == 0
    assert gpu.device_type(False, {}) == "cpu"
    assert gpu.device_type(True, {}) == "cuda"
    with pytest.raises(InputError, match="2 promised by HOLDFAST_GPUS, and torch sees none"):
        gpu.device_type(False, {"HOLDFAST_GPUS": "2"})
    with pytest.raises(InputError, match="HOLDFAST_GPUS is not a number"):
        gpu.parse_gpu_count({"HOLDFAST_GPUS": "all"})


def test_torchs_cuda_version_comes_from_its_version_file() -> None:
    import torch

    assert gpu._find_torch_cuda() == torch.version.cuda


@pytest.mark.process
def test_a_trainer_without_its_promised_gpu_exits_2(tmp_path: Path) -> None:
    run = Run(
        folder=tmp_path,
        steps=2,
        env={"HOLDFAST_GPUS": "1"},
    )
    if any(gpu.DEVICES.glob("nvidia[0-9]*")):
        support.unavailable("this machine has a GPU")
    assert run.complete() == 2
    assert "the pod has GPUs configured, but none is usable" in run.log()
    assert run.events() == []


class FakeCuda:
    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def get_device_name() -> str:
        return "NVIDIA L4"


def test_the_gpu_is_named_once_torch_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=FakeCuda))
    assert gpu.name_gpu() == {"accelerator": "NVIDIA L4"}
    monkeypatch.delitem(sys.modules, "torch")
    assert gpu.name_gpu() == {}
