"""Looks for newer commits of the run that is served, and has the models change to them.

A commit that could not be loaded is not tried again: it is damaged, or does not fit, and stays so.
"""

import asyncio
from collections.abc import Callable, Sequence

from holdfast.checkpoint.errors import StorageError
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.server.errors import Refused
from holdfast.inference.server.models import Models, step_of
from holdfast.runtime import logs

Steps = Callable[[str], Sequence[int]]
"""Run -> its committed steps, newest first."""


def steps_of(spec: PredictorSpec) -> Steps:
    """Of the storage that the predictor reads; the client is made when it is first asked."""

    def listed(run: str) -> Sequence[int]:
        from holdfast.checkpoint import committed_steps
        from holdfast.checkpoint.stores import open_storage

        return committed_steps(open_storage(spec.checkpoints), run)

    return listed


async def follow(models: Models, steps: Steps, every_s: float) -> None:
    """Until cancelled."""
    hopeless = set[int]()
    while True:
        await asyncio.sleep(every_s)
        try:
            await _look(models, steps, hopeless)
        except (OSError, StorageError) as error:  # the storage is away: the model that answers needs none
            logs.warning("swap", f"newer commits cannot be looked for: {error}")


async def _look(models: Models, steps: Steps, hopeless: set[int]) -> None:
    lane = models.current
    run = str(lane.configuration.get("run", "")) if lane else ""
    if lane is None or not run:
        return
    at = step_of(lane.configuration)
    newer = [step for step in await asyncio.to_thread(steps, run) if step > at and step not in hopeless]
    for step in newer:
        try:
            await models.swap(step)
            return
        except Refused:
            hopeless.add(step)
