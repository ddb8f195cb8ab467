"""Pins that must agree: the GPU driver of pools and the CUDA of torch; the provider and its
checksums.
"""

import re
from pathlib import Path

from infra.contract.versions import (
    CUDA_MAJOR,
    GKE_MINORS,
    GOOGLE_PROVIDER_VERSION,
    GPU_DRIVER,
    GPU_DRIVERS,
    MIN_DRIVER,
)
from infra.ops import provider_lock
from tests.tools.build import HERE, KUBERNETES_VERSION, OLDEST_KUBERNETES

LOCK = Path(__file__).parents[2] / "requirements" / "train.txt"


def test_contract_names_the_lock_files_cuda() -> None:
    [major] = set(re.findall(r"^nvidia-cuda-runtime(?:-cu\d+)?==(\d+)\.", LOCK.read_text(), re.M))
    assert int(major) == CUDA_MAJOR, (
        "a new torch brings another CUDA: see MIN_DRIVER in infra/contract/versions.py"
    )


def test_gpu_driver_runs_that_cuda() -> None:
    assert GPU_DRIVERS[GPU_DRIVER] >= MIN_DRIVER[CUDA_MAJOR]
    assert GPU_DRIVERS["DEFAULT"] < MIN_DRIVER[CUDA_MAJOR], "the default would do again: take it"


def test_control_planes_in_tests_are_allowed_versions() -> None:
    """The oldest one is the oldest there is; each is what its pins say."""
    newest = int(KUBERNETES_VERSION.split(".")[1])
    oldest = int(OLDEST_KUBERNETES.split(".")[1])
    assert oldest == GKE_MINORS[0] < newest <= GKE_MINORS[1]
    for folder, version in (
        ("kubernetes", KUBERNETES_VERSION),
        ("kubernetes-oldest", OLDEST_KUBERNETES),
    ):
        assert f"k8s.io/kubernetes v{version}" in (HERE / folder / "go.mod").read_text()


def lock(version: str, *platforms: str) -> str:
    hashes = "".join(f'    "h1:{platform}=",\n' for platform in platforms)
    head = (
        f'provider "registry.terraform.io/hashicorp/google" {{\n  version     = "{version}"\n '
        f' constraints = "{version}"\n'
    )
    return f'{head}  hashes = [\n{hashes}    "zh:0a",\n  ]\n}}\n'


def test_provider_checksums_cover_the_pin_and_every_platform() -> None:
    """`python -m infra.ops.provider_lock` writes them where the registry answers, and the workflow
    `locks` each week.
    """
    assert provider_lock.misfits(lock(GOOGLE_PROVIDER_VERSION, *provider_lock.PLATFORMS)) == []
    assert provider_lock.misfits(lock("7.38.0", *provider_lock.PLATFORMS)) == [
        "version 7.38.0, pinned 7.39.0"
    ]
    assert provider_lock.misfits(lock(GOOGLE_PROVIDER_VERSION, "linux_amd64")) == [
        "1 of 4 platforms"
    ]
    assert provider_lock.misfits("") == ["no hashicorp/google"]
    assert provider_lock.misfits(provider_lock.LOCK.read_text()) == [], (
        "python -m infra.ops.provider_lock"
    )
