"""FSDP2, or HSDP with --replicas: parameters and optimizer state are shards, the loop is the same.

`torchrun --nproc-per-node 4 -m holdfast.training.examples.fsdp2 URL [--replicas 2]`. A checkpoint of one
layout is read by any other: each rank fetches the parts of its own shards.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from holdfast.checkpoint import Checkpointer
from holdfast.training.data import Corpus, Samples, mixed_seed
from holdfast.training.model import ByteGPT, ModelConfig, next_byte_loss


def main(url: str, *, replicas: int, steps: int, batch: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    shape, names = ((replicas, world // replicas), ("replicate", "shard")) if replicas > 1 else ((world,), ("shard",))
    mesh = init_device_mesh(device, shape, mesh_dim_names=names)

    torch.manual_seed(0)
    model = ByteGPT(ModelConfig(dropout=0.0)).to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # After fully_shard: made before, it would go on with the parameters that were replaced.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = Samples(text=Corpus.read(None).text, context=64, seed=0)

    with Checkpointer(url, {"model": model, "optimizer": optimizer}, run="fsdp2", every=10) as ckpt:
        for step in range(ckpt.step, steps):
            torch.manual_seed(mixed_seed(step, rank))
            share = batch // world
            inputs, following = samples.batch(step * batch + rank * share, share)
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
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    main(options.url, replicas=options.replicas, steps=options.steps, batch=options.batch)
