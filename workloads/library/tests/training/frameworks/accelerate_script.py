"""An Accelerate run of one rank: `accelerate_script.py URL STEPS OUT`, with RANK and friends in the environment."""

import hashlib
import os
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn
from torch.utils.data import DataLoader, Dataset

from holdfast.contract.environment import ENV_WINDOW_S
from holdfast.training.frameworks.accelerate import AccelerateCheckpointer
from workloads.library.tests.training.frameworks.waits import announce

torch.set_num_threads(1)


class Points(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return x, x.sum().reshape(1)


def main(url: str, steps: int) -> None:
    torch.manual_seed(1)
    ddp = DistributedDataParallelKwargs(find_unused_parameters=int(os.environ["WORLD_SIZE"]) > 2)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, kwargs_handlers=[ddp])
    net = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.2), nn.Linear(64, 1))
    adam = torch.optim.AdamW(net.parameters(), lr=1e-2)
    data = DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    model, optimizer, loader, scheduler = accelerator.prepare(net, adam, data, decay)
    window_s = float(os.environ.get(ENV_WINDOW_S, "15"))
    with AccelerateCheckpointer(accelerator, url, run="accelerate", every=4, window_s=window_s) as ckpt:
        for _, batches in ckpt.epochs(loader, steps // len(loader)):
            for x, y in batches:
                with accelerator.accumulate(model):
                    accelerator.backward((model(x) - y).square().mean())
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                announce(f"step {ckpt.step + 1}")
                ckpt.tick()
    bits = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()
    print(f"digest {bits}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
