"""Trains the reference model on an elastic gang: `holdfast train elastic`.

The loop looks like that of a user's own trainer.
"""

from dataclasses import dataclass

import torch

from holdfast.checkpoint.errors import CheckpointExit
from holdfast.runtime.events import EventLog
from holdfast.training.deferred_compiler import defer_compiler
from holdfast.training.elastic.gang import ElasticGang
from holdfast.training.gang.member_addresses import Places
from holdfast.training.trainer.config import Training
from holdfast.training.trainer.data import Corpus, Samples
from holdfast.training.trainer.loop import choose_device
from holdfast.training.trainer.metrics import Meter, digest
from holdfast.training.trainer.model import ByteGPT, next_byte_loss
from holdfast.vocabulary import exit_codes
from holdfast.vocabulary.telemetry import KIND_TRAINING

LIMITS = ("window_s", "gather_s", "hold_s", "silent_s", "lag_s")
GANG_SETTINGS = ("run", "places", "shards", "exact", "every", "seed", *LIMITS)
"""Settings that ElasticGang receives; its docstring explains each."""


@dataclass(frozen=True, kw_only=True)
class ElasticConfig(Training):
    places: Places
    run: str = "elastic"
    shards: int = 0
    shard_samples: int = 2
    """Number of samples of one logical shard."""
    exact: bool = False
    every: int = 50
    gather_s: float = 20.0
    hold_s: float = 60.0
    silent_s: float = 3.0
    lag_s: float = 120.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_range("every", low=1)
        self.check_range(
            *LIMITS,
            low=0,
            high=86_400,
        )


def train_elastic(config: ElasticConfig) -> int:
    """Trains to the last step and returns the process's exit code."""
    defer_compiler()
    local_rank = config.places.index % config.places.ranks_per_node
    device = choose_device(config.device, local_rank=local_rank)
    corpus = Corpus.read(config.data)
    samples = Samples(text=corpus.text, context=config.model.context, seed=config.seed)
    # Seeds the initial parameters of the first lead; gang.shards() seeds the draws of each step.
    torch.manual_seed(config.seed)
    model = ByteGPT(config.model).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    events = EventLog.open(config.events, job=config.run, kind=KIND_TRAINING)
    meter = Meter(events, every=config.report_every)
    settings = {name: getattr(config, name) for name in GANG_SETTINGS}
    gang = ElasticGang(
        config.checkpoints,
        {
            "model": model,
            "optimizer": optimizer,
        },
        facts={
            "data": corpus.fingerprint,
            "samples of a shard": config.shard_samples,
        },
        events=events,
        **settings,
    )
    try:
        with gang:
            meter.slowest = gang.slowest
            meter.begin(gang.step, lead=gang.coordinator)
            for step in gang.steps(config.steps):
                loss = torch.zeros(())
                for shard in gang.shards():
                    # Indexed by the logical shard, not by the rank: a step has the same samples
                    # for any number of nodes.
                    first = (step * gang.shard_count + shard) * config.shard_samples
                    inputs, following = samples.batch(first, config.shard_samples)
                    loss = next_byte_loss(model(inputs.to(device)), following.to(device))
                    gang.backward(loss)
                # False: a peer was lost. No node may apply this step, and the loop repeats it.
                if gang.reduce():
                    optimizer.step()
                    meter.follow(lead=gang.coordinator)
                    # The loss of this node's last shard: a mean over the gang would be one more
                    # collective in every step.
                    meter.step(step + 1, loss.detach())
            meter.flush()
    except CheckpointExit as end:
        events.emit("exit", code=end.CODE, step=end.step)
        return end.CODE
    events.emit(
        "exit",
        code=exit_codes.EXIT_COMPLETE,
        step=config.steps,
        digest=digest(model, optimizer),
    )
    return exit_codes.EXIT_COMPLETE
