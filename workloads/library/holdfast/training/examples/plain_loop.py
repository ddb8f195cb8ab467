"""A loop of your own: `torchrun --nproc-per-node 2 -m holdfast.training.examples.plain_loop URL
[STEPS]`.

Start it again after any exit: it continues. torchrun's own exit code is 1 after SIGTERM; a Job that
has to distinguish evictions from bugs runs `holdfast train run`, or maps codes as
workloads/library/holdfast/training/trainer/launch.py does.
"""

import argparse
import os

import torch
import torch.distributed as dist

from holdfast.checkpoint import Checkpointer
from holdfast.training.trainer.replicas import replicate


def main(url: str, steps: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(32, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    replicas = replicate(model)  # DDP
    run = os.environ.get("HOLDFAST_RUN", "plain-loop")
    # The model and not its replica: DDP's keys begin with `module.`, and fit no other layout.
    with Checkpointer(
        url,
        {"model": model, "optimizer": optimizer},
        run=run,
        every=20,
    ) as ckpt:
        for step in range(ckpt.step, steps):
            # By step and rank: a resumed run draws what the interrupted one would have drawn.
            generator = torch.Generator().manual_seed(
                step * dist.get_world_size() + dist.get_rank()
            )
            inputs = torch.randn(8, 32, generator=generator)
            loss = (replicas(inputs).squeeze(1) - inputs.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ckpt.tick(step + 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument(
        "steps",
        nargs="?",
        type=int,
        default=200,
    )
    main(**vars(parser.parse_args()))
