"""`titan.py URL STEPS`: the loop of torchtitan's Trainer around its checkpoint manager, its
optimizers and its schedulers; the model is sharded by FSDP2.

The Trainer itself takes an accelerator and no CPU. KILL_AT with the number of a rank kills it in
that step; with ONCE_DURABLE, once the last save is committed. `titan.py settings` tries settings
that are refused.
"""

import hashlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer
from torchtitan.components.optimizer.optimizer import ParamGroupConfig

from holdfast.checkpoint import committed_steps
from holdfast.checkpoint.stores import open_storage
from holdfast.support.errors import InputError
from holdfast.training.frameworks.torchtitan import HoldfastCheckpointManager
from holdfast.vocabulary.environment import ENV_WINDOW_S
from workloads.library.tests.processes import until
from workloads.library.tests.training.frameworks.waits import announce

KILL_AT = "HOLDFAST_TEST_KILL_STEP"
ONCE_DURABLE = "HOLDFAST_TEST_KILL_ONCE_DURABLE"
INTERVAL = 3
RUN = "titan"
OWN_DEVICE = "cpu"


class Data:
    """A data loader with a position, as torchtitan's."""

    def __init__(self) -> None:
        self._position = 0

    def __next__(self) -> torch.Tensor:
        self._position += 1
        generator = torch.Generator().manual_seed(10 * self._position + dist.get_rank())
        return torch.randn(4, 16, generator=generator)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._position = state["position"]


class Trainer:
    def __init__(
        self,
        url: str,
        steps: int,
        *,
        interval: int = INTERVAL,
    ) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 16)
        )
        fully_shard(self.model, mesh=dist.device_mesh.init_device_mesh(OWN_DEVICE, (2,)))
        group = ParamGroupConfig(
            pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.01}
        )
        self.optimizers = OptimizersContainer.Config(
            param_groups=[group], implementation="for-loop"
        ).build(model_parts=[self.model])
        self.lr_schedulers = LRSchedulersContainer.Config(warmup_steps=5).build(
            optimizers=self.optimizers, training_steps=steps
        )
        self.step = 0
        self.ntokens_seen = 0
        self._steps = steps
        self._data = Data()
        self._storage = open_storage(url)
        window_s = float(os.environ.get(ENV_WINDOW_S, "60"))
        self.checkpointer = HoldfastCheckpointManager.Config(
            url=url, run=RUN, interval=interval, window_s=window_s
        ).build(
            dataloader=self._data,
            model_parts=[self.model],
            optimizers=self.optimizers,
            lr_schedulers=self.lr_schedulers,
            states={"train_state": self},
            sd_adapter=None,
            base_folder="",
        )

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "ntokens_seen": self.ntokens_seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.ntokens_seen = state["ntokens_seen"]

    def train(self) -> None:
        self.checkpointer.load(step=-1)
        print("begins after", self.step, flush=True)
        while self.step < self._steps:
            self.wait_between_steps()
            self.step += 1
            self.train_step()
            self.checkpointer.save(self.step, last_step=self.step == self._steps)
        self.checkpointer.close()

    def wait_between_steps(self) -> None:
        """Does nothing, where no test holds the training."""

    def train_step(self) -> None:
        inputs = next(self._data)
        if os.environ.get(f"{KILL_AT}_{dist.get_rank()}") == str(self.step):
            if os.environ.get(ONCE_DURABLE):
                until(self._is_last_save_durable, "the last save is not committed")
            os.kill(os.getpid(), signal.SIGKILL)
        loss = (self.model(inputs) - inputs).square().mean()
        loss.backward()
        self.checkpointer.maybe_wait_for_staging()
        self.optimizers.step()
        self.optimizers.zero_grad()
        self.lr_schedulers.step()
        self.ntokens_seen += inputs.numel()
        announce(f"step {self.step}")

    def _is_last_save_durable(self) -> bool:
        last_save = (self.step - 1) // INTERVAL * INTERVAL
        return max(committed_steps(self._storage, RUN), default=0) >= last_save


def run_trainer(make: Callable[[], Trainer]) -> None:
    dist.init_process_group("gloo")
    trainer = make()
    try:
        trainer.train()
    except Exception:
        trainer.checkpointer.close()
        raise
    weights = hashlib.sha256()
    for parameter in trainer.model.parameters():
        assert isinstance(parameter, DTensor)
        weights.update(parameter.full_tensor().detach().numpy().tobytes())
    print("digest", weights.hexdigest(), trainer.step, trainer.ntokens_seen, flush=True)
    dist.destroy_process_group()


def try_settings() -> None:
    refused = {"load_step": 5, "load_only": True, "last_save_model_only": True}
    refused |= {"exclude_from_loading": ["optimizer"], "create_seed_checkpoint": True}
    for name, value in refused.items():
        try:
            HoldfastCheckpointManager.Config(url="x", **{name: value})
        except InputError as error:
            assert name in error.what, error
        else:
            raise AssertionError(name)
    print("all refused", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "settings":
        try_settings()
    else:
        run_trainer(lambda: Trainer(sys.argv[1], int(sys.argv[2])))
