"""FSDP2, HSDP with --replicas, or FSDP2 over tensor parallelism with --tensor, as torchtitan composes them: parameters
and optimizer state are shards, the loop is the same.

`torchrun --nproc-per-node 4 -m holdfast.training.examples.fsdp2 URL [--replicas 2 | --tensor 2]`. A checkpoint of one
layout is read by any other: each rank fetches the parts of its own shards.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from holdfast.checkpoint import Checkpointer
from holdfast.training.data import Corpus, Samples, mixed_seed
from holdfast.training.model import ByteGPT, ModelConfig, next_byte_loss


def main(url: str, *, replicas: int, tensor: int, steps: int, batch: int, every: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    names = ("replicate", "shard", "tensor")
    grid = init_device_mesh(device, (replicas, world // replicas // tensor, tensor), mesh_dim_names=names)
    mesh = grid["replicate", "shard"] if replicas > 1 else grid["shard"]
    # Ranks of one tensor group see the same samples.
    shares, share = world // tensor, rank // tensor

    torch.manual_seed(0)
    model = ByteGPT(ModelConfig(dropout=0.0)).to(device)
    for block in model.blocks:
        if tensor > 1:
            parallelize_module(block, grid["tensor"], {"feed.0": ColwiseParallel(), "feed.2": RowwiseParallel()})
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # After fully_shard: made before, it would go on with the parameters that were replaced.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = Samples(text=Corpus.read(None).text, context=64, seed=0)

    with Checkpointer(url, {"model": model, "optimizer": optimizer}, run="fsdp2", every=every) as ckpt:
        for step in range(ckpt.step, steps):
            torch.manual_seed(mixed_seed(step, share))
            count = batch // shares
            inputs, following = samples.batch(step * batch + share * count, count)
            loss = next_byte_loss(model(inputs.to(device)), following.to(device))
            optimizer.zero_grad()
            loss.backward()
            with ckpt.lock():  # the state must not change while it is copied off the GPU
                optimizer.step()
            if rank == 0:
                print(f"step {step + 1} loss {loss.item():.6f}", flush=True)
            ckpt.tick(step + 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    main(**vars(options))
