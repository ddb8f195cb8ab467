"""The promise of a GPU: the driver that pools get, and the CUDA of the pinned torch."""

import re
from pathlib import Path

from infra.contract.versions import CUDA_MAJOR, GPU_DRIVER, GPU_DRIVERS, MIN_DRIVER

LOCK = Path(__file__).parents[2] / "requirements" / "train.txt"


def test_the_contract_names_the_cuda_of_the_lock() -> None:
    [major] = set(re.findall(r"^nvidia-cuda-runtime(?:-cu\d+)?==(\d+)\.", LOCK.read_text(), re.M))
    assert int(major) == CUDA_MAJOR, "a new torch brings another CUDA: see MIN_DRIVER in infra/contract/versions.py"


def test_the_driver_of_gpu_pools_runs_it() -> None:
    assert GPU_DRIVERS[GPU_DRIVER] >= MIN_DRIVER[CUDA_MAJOR]
    assert GPU_DRIVERS["DEFAULT"] < MIN_DRIVER[CUDA_MAJOR], "the default would do again: take it"
