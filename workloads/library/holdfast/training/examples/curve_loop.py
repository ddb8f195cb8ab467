# pyright: basic, reportMissingImports=false
"""A loop with a curve in TensorBoard: `torchrun --nproc-per-node 2 -m
holdfast.training.examples.curve_loop URL [FOLDER] [STEPS]`.

Start it again after any exit: it continues, and so does its curve. Needs
holdfast-gke[tensorboard].
"""

import argparse
import os

import torch
import torch.distributed as dist

from holdfast.checkpoint import Checkpointer
from holdfast.training.curves.tensorboard import TensorBoardCurve
from holdfast.training.trainer.replicas import replicate


def main(url: str, folder: str, steps: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(32, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    replicas = replicate(model)  # DDP
    curve = TensorBoardCurve(folder)
    state = {"model": model, "optimizer": optimizer, "curve": curve}
    run = os.environ.get("HOLDFAST_RUN", "curve-loop")
    with Checkpointer(url, state, run=run, every=20) as ckpt:
        for step in range(ckpt.step, steps):
            generator = torch.Generator().manual_seed(
                step * dist.get_world_size() + dist.get_rank()
            )
            inputs = torch.randn(8, 32, generator=generator)
            loss = (replicas(inputs).squeeze(1) - inputs.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.log(step + 1, {"loss": loss.item()})
            ckpt.tick(step + 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("folder", nargs="?", default="out/curves")
    parser.add_argument("steps", nargs="?", type=int, default=200)
    main(**vars(parser.parse_args()))
