"""FSDP2, HSDP with --replicas, or FSDP2 over tensor parallelism with --tensor, as torchtitan
composes them.

`torchrun --nproc-per-node 4 -m holdfast.training.examples.fsdp2 URL [--tensor 2]`. Any layout reads
any other's shards.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from holdfast.checkpoint import Checkpointer
from holdfast.training.trainer.data import Corpus, Samples, mix_seed
from holdfast.training.trainer.model import ByteGPT, ModelConfig


def main(
    url: str,
    *,
    replicas: int,
    tensor: int,
    steps: int,
    batch: int,
    every: int,
) -> None:
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    else:
        device = torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    # a tensor group sees the same samples
    shares = dist.get_world_size() // tensor
    share = dist.get_rank() // tensor
    names = ("replicate", "shard", "tensor")
    grid = init_device_mesh(
        device.type, (replicas, shares // replicas, tensor), mesh_dim_names=names
    )
    mesh = grid["replicate", "shard"] if replicas > 1 else grid["shard"]
    torch.manual_seed(0)
    model = ByteGPT(ModelConfig(dropout=0.0)).to(device)
    for block in model.blocks:
        if tensor > 1:
            parallelize_module(
                block,
                grid["tensor"],
                {
                    "feed.0": ColwiseParallel(),
                    "feed.2": RowwiseParallel(),
                },
            )
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # after fully_shard, which replaces the parameters
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = Samples(
        text=Corpus.read(None).text,
        context=64,
        seed=0,
    )
    run = os.environ.get("HOLDFAST_RUN", "fsdp2")
    with Checkpointer(
        url,
        {"model": model, "optimizer": optimizer},
        run=run,
        every=every,
    ) as ckpt:
        for step in range(ckpt.step, steps):
            torch.manual_seed(mix_seed(step, share))
            inputs, following = samples.batch(
                step * batch + share * batch // shares, batch // shares
            )
            loss = model.loss(inputs.to(device), following.to(device))
            optimizer.zero_grad()
            loss.backward()
            with ckpt.lock():  # the state must not change while it is copied off the GPU
                optimizer.step()
            if dist.get_rank() == 0:
                print(f"step {step + 1} loss {loss.item():.6f}", flush=True)
            ckpt.tick(step + 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    for name, default in {
        "replicas": 1,
        "tensor": 1,
        "steps": 100,
        "batch": 8,
        "every": 10,
    }.items():
        parser.add_argument(
            f"--{name}",
            type=int,
            default=default,
        )
    main(**vars(parser.parse_args()))
