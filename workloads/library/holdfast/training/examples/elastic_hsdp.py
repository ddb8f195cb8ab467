"""FSDP2 inside a node and an elastic gang of such nodes: `python -m
holdfast.training.examples.elastic_hsdp URL [STEPS]`.

Each node holds the whole state, sharded over its processes, so no shard is lost with a node. A job
file with `nodes: 2..4` and four GPUs per node starts the program four times in each pod; started
alone it is a node of one process. With exact=True the weights are bit-identical for any number of
such nodes.
"""

import argparse
import os

import torch
from torch.distributed.fsdp import fully_shard

from holdfast.support.errors import run_cli
from holdfast.training.elastic.gang import ElasticGang
from holdfast.training.gang.node import join_node
from holdfast.training.trainer.data import Corpus, Samples
from holdfast.training.trainer.model import ByteGPT, ModelConfig

SAMPLES = 2  # of a shard


def main(url: str, steps: int) -> None:
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        device = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0")))
    else:
        device = torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    mesh = join_node(kind)
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
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # after fully_shard, which replaces the parameters
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = Samples(
        text=Corpus.read(None).text,
        context=32,
        seed=0,
    )
    state = {"model": model, "optimizer": optimizer}
    run = os.environ.get("HOLDFAST_RUN", "elastic-hsdp")
    with ElasticGang(
        url,
        state,
        run=run,
        shards=16,
        exact=True,
        every=10,
    ) as gang:
        for step in gang.steps(steps):
            loss = torch.zeros(())
            for shard in gang.shards():  # the processes of a node have one each at the same time
                first = (step * gang.shard_count + shard) * SAMPLES
                inputs, following = samples.batch(first, SAMPLES)
                loss = model.loss(inputs.to(device), following.to(device))
                gang.backward(loss)
            if gang.reduce():  # False: a node was lost, and the step is repeated
                optimizer.step()
                if gang.coordinator:
                    print(
                        f"step {step + 1} of {gang.world_size} processes, loss {loss.item():.6f}",
                        flush=True,
                    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument(
        "steps",
        nargs="?",
        type=int,
        default=200,
    )
    run_cli(lambda: main(**vars(parser.parse_args())))
