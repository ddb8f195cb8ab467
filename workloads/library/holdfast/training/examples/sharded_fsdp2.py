"""FSDP2 over nodes that keep each other's shards in memory: the others go on without a lost node,
and take its replacement in.

A job file with `sharded: true` starts it on each node. By hand, node 0 of 4 is started with
`holdfast train ranks --processes 1 --sharded --nodes 4 --min-nodes 2 --place 0 -- python -m
holdfast.training.examples.sharded_fsdp2 URL`. The program is the same as under torchrun: the
launcher sets RANK, WORLD_SIZE and MASTER_ADDR, and restarts it.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from holdfast.checkpoint import Checkpointer, Tuning
from holdfast.training.sharded.logical_shards import LogicalShards
from holdfast.training.trainer.data import Corpus, Samples
from holdfast.training.trainer.model import ByteGPT, ModelConfig

BATCH = 24  # of a step, over all ranks
SHARDS = 12


def main(url: str, steps: int, every: int, copy_every: int) -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    torch.manual_seed(0)
    model = ByteGPT(
        ModelConfig(
            context=32,
            width=32,
            layers=2,
            heads=2,
        )
    ).to(device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    # after fully_shard, which replaces the parameters
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = Samples(
        text=Corpus.read(None).text,
        context=32,
        seed=0,
    )
    # The same shards for any number of nodes, with bit-identical sums.
    parts = LogicalShards(model, shards=SHARDS, batch=BATCH, exact=True)
    state = {
        "model": model,
        "optimizer": optimizer,
        "parts": parts,
    }
    run = os.environ.get("HOLDFAST_RUN", "sharded-fsdp2")
    # Copies to the next node's memory need no call; 0 makes them as often as they cost little.
    with Checkpointer(
        url,
        state,
        run=run,
        every=every,
        tuning=Tuning(peer_steps=copy_every),
    ) as ckpt:
        for step in range(ckpt.step, steps):
            losses = torch.zeros(SHARDS, device=device)
            optimizer.zero_grad()
            for part in parts.of_step(step):
                first = parts.first_sample(step, part)
                inputs, following = samples.batch(first, parts.samples)
                loss = model.loss(inputs.to(device), following.to(device))
                parts.backward(loss)
                losses[part] = loss.detach()
            with ckpt.lock():  # the state must not change while it is copied
                optimizer.step()
            # Not summed over the ranks: the mean has the same bits for any number of them.
            dist.all_reduce(losses, op=dist.ReduceOp.MAX)
            if dist.get_rank() == 0:
                print(f"step {step + 1} loss {losses.mean().item():.6f}", flush=True)
            ckpt.tick(step + 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    for name, default in {
        "steps": 200,
        "every": 10,
        "copy_every": 0,
    }.items():
        parser.add_argument(
            name,
            nargs="?",
            type=int,
            default=default,
        )
    main(**vars(parser.parse_args()))
