"""The buckets of DDP, in which gradients are summed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.training.deferred_compiler import defer_compiler
from holdfast.training.replicas import replicate

defer_compiler()  # as a trainer does: DDP would import it for nothing
WIDTH = 400  # a layer of it fills DDP's first bucket


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def buckets(replicas: DistributedDataParallel) -> str:
    """Parameters by number, in the order in which they are summed."""
    for _ in range(3):
        replicas(torch.randn(2, WIDTH)).sum().backward()
    return replicas._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"]


@pytest.mark.usefixtures("group")
def test_its_buckets_are_those_that_ddp_finds_after_a_step() -> None:
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(5)))
    replicas = replicate(layers)
    assert all(parameter.grad is None for parameter in layers.parameters())
    assert not replicas.reducer._rebuild_buckets()  # already done
    found = buckets(replicas)
    assert found == buckets(DistributedDataParallel(layers))
    assert found.startswith("9 8 ")  # the last layer first: its gradients are ready first
