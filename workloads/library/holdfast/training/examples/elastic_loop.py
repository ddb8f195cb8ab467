"""A plain loop that continues without lost nodes: `python -m
holdfast.training.examples.elastic_loop URL [STEPS]`.

A job file with `nodes: 4..8` starts it in each pod and describes the gang in the environment;
started alone it is a gang of one. On 8, 7 or 4 nodes each step is the same 48 shards, so batch,
samples and learning rate stay the same. With exact=True the weights are bit-identical too.
"""

import argparse
import os

import torch

from holdfast.support.errors import run_cli
from holdfast.training.elastic.gang import ElasticGang

SAMPLES = 8  # of a shard


def main(url: str, steps: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(32, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = {"model": model, "optimizer": optimizer}
    run = os.environ.get("HOLDFAST_RUN", "elastic-loop")
    # Raises if this node gets a notice (exit 143) or too few nodes remain (75): the Job restarts
    # the pod.
    with ElasticGang(
        url,
        state,
        run=run,
        shards=48,
        exact=True,
        every=20,
    ) as gang:
        for step in gang.steps(steps):
            loss = torch.zeros(())
            for shard in gang.shards():
                # By step and shard, never by rank: every owner of the shard draws the same samples.
                generator = torch.Generator().manual_seed(step * gang.shard_count + shard)
                inputs = torch.randn(SAMPLES, 32, generator=generator)
                loss = (model(inputs).squeeze(1) - inputs.sum(1)).square().mean()
                gang.backward(loss)
            if gang.reduce():  # False: a node was lost, and the step is repeated
                optimizer.step()
                print(
                    f"step {step + 1} of {gang.world_size} nodes, loss {loss.item():.9f}",
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
