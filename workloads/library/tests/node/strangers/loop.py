"""Somebody's loop that holds a Checkpointer and nothing else of the platform: steps of a twentieth
of a second.
"""

import os
import sys
import time

import torch

from holdfast.checkpoint import Checkpointer

weights = torch.zeros(1000)
place = os.environ["HOLDFAST_CHECKPOINTS"]
run = os.environ["HOLDFAST_RUN"]
with Checkpointer(place, {"weights": weights}, run=run, every=50) as checkpointer:
    for step in range(checkpointer.step, int(sys.argv[1])):
        weights += 1
        time.sleep(0.05)
        checkpointer.tick(step + 1)
print(f"the sum is {weights.sum():.0f}", flush=True)
