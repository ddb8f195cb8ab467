"""An Accelerate run of one rank: `accelerate_script.py URL STEPS OUT`, with RANK and friends in the environment."""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from holdfast.training.frameworks.accelerate import AccelerateCheckpointer
from workloads.library.tests.training.frameworks.waits import WINDOW_S, Points, announce, digest

torch.set_num_threads(1)


def main(url: str, steps: int) -> None:
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.2), nn.Linear(64, 1))
    adam = torch.optim.AdamW(net.parameters(), lr=1e-2)
    data = DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    model, optimizer, loader, scheduler = accelerator.prepare(net, adam, data, decay)
    with AccelerateCheckpointer(accelerator, url, run="accelerate", every=4, window_s=WINDOW_S) as ckpt:
        for _, batches in ckpt.epochs(loader, steps // len(loader)):
            for x, y in batches:
                with accelerator.accumulate(model):
                    accelerator.backward((model(x) - y).square().mean())
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                announce(f"step {ckpt.step + 1}")
                ckpt.tick()
    print(f"digest {digest(net)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
