"""Logical shards of a step, for a sharded gang that continues with fewer nodes.

    parts = LogicalShards(model, shards=48, batch=384)
    state = {"model": model, "optimizer": optimizer, "parts": parts}
    with Checkpointer(url, state) as ckpt:
        for step in range(ckpt.step, 1000):
            optimizer.zero_grad()
            for part in parts.of_step(step):
                inputs, targets = batch(parts.first_sample(step, part), parts.samples)
                parts.backward(loss(model(inputs), targets))
            optimizer.step()
            ckpt.tick(step + 1)

A step is the same shards for any number of ranks, with the same samples and the same random draws.
Each rank computes some of them, one after the other. With exact=True the gradients are summed in
integers, so the weights are bit-identical for every sequence of sizes. BatchNorm normalizes each
shard by itself, and its running statistics are those of all shards of a step.
"""

# Why it is so: infra/decisions/0136.

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from holdfast.checkpoint.peers import PeerPlaces
from holdfast.checkpoint.state.tensors import as_dtensor
from holdfast.support.errors import InputError
from holdfast.training.elastic.shards import MAX_SHARDS, share
from holdfast.training.gang.running_statistics import RunningStatistics
from holdfast.training.sharded.exact_sum import ExactReduceScatter
from holdfast.training.sharded.shard_checks import ShardChecks
from holdfast.training.trainer.data import mix_seed, seed_draws
from holdfast.training.trainer.progress import check_facts


class LogicalShards:
    """Deals the shards of each step to the ranks of a model that FSDP2 has sharded.

    It is an entry of the checkpoint's state, which records the division.

        parts = LogicalShards(model, shards=48, batch=384)
        state = {"model": model, "optimizer": optimizer, "parts": parts}
        with Checkpointer("gs://bucket/runs", state, run="run-7") as ckpt:
            for step in range(ckpt.step, 1000):
                optimizer.zero_grad()
                for part in parts.of_step(step):
                    inputs, targets = batch(parts.first_sample(step, part), parts.samples)
                    parts.backward(loss(model(inputs), targets))
                optimizer.step()
                ckpt.tick(step + 1)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        shards: int,
        batch: int,
        seed: int = 0,
        exact: bool = False,
        mesh: DeviceMesh | None = None,
    ) -> None:
        """`shards` and `batch` are the shards and the samples of a step, over all ranks.

        `mesh` has the ranks that compute with different samples; None: all of them. Raises
        InputError if the numbers do not fit the gang, or the model cannot be summed exactly.
        """
        self._rank = mesh.get_local_rank() if mesh else dist.get_rank()
        self._world_size = mesh.size() if mesh else dist.get_world_size()
        self._count = shards
        self._seed = seed
        self._facts: dict[str, Any] = {
            "shards": shards,
            "batch": batch,
            "seed": seed,
            "exact": exact,
        }
        _check_numbers(shards, batch, self._world_size)
        self.samples = batch // shards
        """Number of samples of each shard."""
        self._device = next(model.parameters()).device
        self._weight = 0.0
        self._group = mesh.get_group() if mesh else None
        self._statistics = RunningStatistics(
            [model],
            shards=shards,
            exact=exact,
            is_batch_over_ranks=True,
        )
        self._sums: list[ExactReduceScatter] = []
        self._checks: ShardChecks | None = None
        self._parameters = list(model.parameters())
        if exact:
            self._sums = _install_exact_sums(model, shards)
            places = PeerPlaces.of_environment()
            if places and places.notes >= 0:
                self._checks = ShardChecks(places, self._device, self._group)
                for total in self._sums:
                    total.hashes = True

    def of_step(self, step: int) -> Generator[int]:
        """Yields this rank's shards of `step`, each with torch's random state seeded for it.

        Each rank gets equally many, since a backward pass is a collective: one with fewer shards
        computes its last shard again, which `backward` does not count.
        """
        if self._checks:
            self._checks.begin(step)
        yield from self._compute(step)
        while self._checks and self._checks.must_repeat(step):
            for parameter in self._parameters:
                parameter.grad = None
            yield from self._compute(step)
        for sums in self._statistics.sums:
            dist.all_reduce(sums, group=self._group)
        self._statistics.end_step()
        # Draws between two steps, and the state that is saved, do not depend on the ranks either.
        seed_draws(mix_seed(self._seed, step, self._count), self._device)

    def _compute(self, step: int) -> Generator[int]:
        """Yields this rank's shards of one try of a step."""
        ranks = list(range(self._world_size))
        turn = 0
        if self._checks:
            ranks = self._checks.list_sound_ranks()
            # Each try of a step gives a shard to another rank, to check the one before.
            turn = self._checks.turn
        own_shards: Sequence[int] = ()
        if self._rank in ranks:
            position = (ranks.index(self._rank) + turn) % len(ranks)
            own_shards = share(self._count, position, len(ranks))
        rounds = -(-self._count // len(ranks))
        self._statistics.begin_step()
        # FSDP2 takes the mean over the ranks of a round; a step's gradient is the mean over shards.
        scale = 1.0 if self._sums else self._world_size / self._count
        for number in range(rounds):
            is_own = number < len(own_shards)
            shard = own_shards[number] if is_own else max(own_shards, default=0)
            self._weight = scale if is_own else 0.0
            for total in self._sums:
                total.begin_round(is_first=number == 0, is_last=number == rounds - 1)
            seed_draws(mix_seed(self._seed, step, shard), self._device)
            self._statistics.begin_shard()
            yield shard
            if self._checks and is_own:
                self._checks.note(step, shard, [total.hashed for total in self._sums])

    def first_sample(self, step: int, shard: int) -> int:
        """Returns the position of the shard's first sample, counted over the whole run."""
        return (step * self._count + shard) * self.samples

    def backward(self, loss: Tensor) -> None:
        """Computes the gradients of a shard's mean loss; those of a step are their mean."""
        (loss * self._weight).backward()
        if self._weight:
            self._statistics.add_shard()

    def state_dict(self) -> dict[str, Any]:
        return dict(self._facts)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises InputError if the division differs from that of the run."""
        check_facts(self._facts, state)


def _check_numbers(shards: int, batch: int, world_size: int) -> None:
    places = PeerPlaces.of_environment()
    rank_count = world_size
    if places and places.resizes:
        rank_count = world_size * places.max_nodes // len(places.keepers)
    if not rank_count <= shards <= MAX_SHARDS:
        raise InputError(
            "number of logical shards does not fit the gang",
            got=f"{shards} shards for up to {rank_count} ranks",
            allowed=f"{rank_count} to {MAX_SHARDS}: each rank computes one at least",
            fix=f"shards={6 * rank_count}",
        )
    if batch < shards or batch % shards:
        nearest = max(1, round(batch / shards)) * shards
        raise InputError(
            "the batch cannot be divided into its logical shards",
            got=f"{batch} samples in {shards} shards: {batch / shards:.2f} each",
            allowed="a multiple of the number of shards",
            fix=f"batch={nearest}",
        )


def _install_exact_sums(model: nn.Module, shards: int) -> list[ExactReduceScatter]:
    for name, parameter in model.named_parameters():
        sharded = as_dtensor(parameter.data)
        if sharded is None or sharded.device_mesh.ndim > 1:
            kind = "is not sharded"
            if sharded is not None:
                kind = f"is on a mesh of {' x '.join(map(str, sharded.device_mesh.shape))} ranks"
            raise InputError(
                "gradients cannot be summed exactly",
                got=f"{name} {kind}",
                allowed="all parameters sharded by fully_shard over one mesh of all ranks",
                fix="fully_shard(model) without replicas and tensor parallelism, or exact=False",
            )
    sums: list[ExactReduceScatter] = []
    for module in model.modules():
        if isinstance(module, FSDPModule):
            total = ExactReduceScatter(shards)
            module.set_gradient_divide_factor(1.0)
            module.set_custom_reduce_scatter(total)
            module.set_all_reduce_hook(total.finish_alone)
            sums.append(total)
    return sums
