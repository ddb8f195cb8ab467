"""The model that answers, and how a newer one takes its place.

Guarantees: a model takes requests only after it was loaded, its checksums verified, and a warm-up batch answered; one
that fails at any of it leaves the old one where it is; the old one answers what it had, so no answer is a mixture.
Both are in memory for as long as a change lasts: twice the model's memory must be there.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

from holdfast.checkpoint.errors import StorageError
from holdfast.contract.errors import InputError
from holdfast.inference.errors import PredictorError, Refused
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.server.lane import Lane
from holdfast.inference.server.metrics import Metrics
from holdfast.inference.server.settings import ServerSettings
from holdfast.runtime import logs

TAKEN, SAME, REFUSED = "taken", "same", "refused"


class Models:
    def __init__(
        self,
        spec: PredictorSpec,
        settings: ServerSettings,
        metrics: Metrics,
        *,
        lost: Callable[[BaseException], object],
    ) -> None:
        """`lost` is called once when the model that answers cannot go on."""
        self._spec, self._settings, self._metrics, self._lost = spec, settings, metrics, lost
        self.current: Lane | None = None
        """The model that answers; None until the first is loaded."""
        self._lanes: dict[asyncio.Task[None], Lane] = {}
        self._swapping = asyncio.Lock()
        self._loading: asyncio.Future[str] | None = None
        self._leaving = False

    async def start(self) -> None:
        """Raises what the first load does."""
        lane = self._made(self._spec)
        await lane.load()
        self._take(lane)
        logs.info("serve", f"{self._settings.model} answers with {commit_of(lane.configuration)}")

    async def swap(self, step: int | None = None) -> str:
        """To the newest commit that verifies, or to the one of `step`: TAKEN or SAME. Refused with 409, and with 503 by
        a server that leaves."""
        async with self._swapping:
            old = self.current
            if old is None:
                raise Refused(503, "the first model is not loaded yet", retry_after_s=1.0, reason="loading")
            try:
                outcome = await self._while_staying(self._swapped(old, step))
            except (InputError, PredictorError) as error:
                self._metrics.swaps.labels(REFUSED).inc()
                logs.warning("swap", f"{commit_of(old.configuration)} stays: {error}")
                raise Refused(409, f"{commit_of(old.configuration)} stays: {error}"[:600]) from None
        self._metrics.swaps.labels(outcome).inc()
        return outcome

    async def _while_staying(self, work: Coroutine[Any, Any, str]) -> str:
        self._loading = asyncio.ensure_future(work)
        if self._leaving:
            self._loading.cancel()
        try:
            return await self._loading
        except asyncio.CancelledError:
            if self._leaving:
                raise Refused(503, "this server is shutting down", retry_after_s=1.0, reason="leaving") from None
            raise
        finally:
            self._loading = None

    def leave(self) -> None:
        """Load nothing more: a model takes minutes, and the drain would wait for its requester."""
        self._leaving = True
        if self._loading is not None:
            self._loading.cancel()

    async def _swapped(self, old: Lane, step: int | None) -> str:
        lane = self._made(replace(self._spec, pinned=_pinned(old.configuration, step)))
        try:
            await lane.load()
        except BaseException:
            lane.close()
            raise
        older = step is None and step_of(lane.configuration) < step_of(old.configuration)
        if lane.configuration == old.configuration or older:
            lane.close()
            return SAME
        self._take(lane)
        old.retire()
        logs.info("swap", f"{commit_of(lane.configuration)} takes over from {commit_of(old.configuration)}")
        return TAKEN

    def _made(self, spec: PredictorSpec) -> Lane:
        return Lane(spec, self._settings, self._metrics)

    def _take(self, lane: Lane) -> None:
        task = asyncio.create_task(lane.run())
        self._lanes[task] = lane
        self.current = lane
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        lane = self._lanes.pop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and lane is self.current:
            self._lost(error)

    async def follow(self, every_s: float) -> None:
        """Change to newer commits of the run that is served, until cancelled.

        A commit that could not be loaded is not tried again: it is damaged, or does not fit, and stays so.
        """
        hopeless = set[int]()
        while True:
            await asyncio.sleep(every_s)
            try:
                for step in await asyncio.to_thread(self._newer_steps):
                    if step not in hopeless and await self._takes(step):
                        break
                    hopeless.add(step)
            except (OSError, StorageError) as error:  # the storage is away: the model that answers needs none
                logs.warning("swap", f"newer commits cannot be looked for: {error}")

    async def _takes(self, step: int) -> bool:
        try:
            await self.swap(step)
        except Refused:
            return False
        return True

    def _newer_steps(self) -> list[int]:
        """The newest first; none before a model is loaded, and of a model that comes from no run."""
        from holdfast.checkpoint import committed_steps
        from holdfast.checkpoint.stores import open_storage

        known = self.current.configuration if self.current else {}
        if not (run := known.get("run")):
            return []
        return [
            step for step in committed_steps(open_storage(self._spec.checkpoints), str(run)) if step > step_of(known)
        ]

    def close(self) -> None:
        """End every predicting process at once."""
        for lane in self._lanes.values():
            lane.close()


def _pinned(configuration: Mapping[str, Any], step: int | None) -> dict[str, Any]:
    if step is None:
        return {}
    if "run" not in configuration:
        raise InputError("this model has no steps", got=f"step {step}", allowed="no step", fix="load it without a step")
    return {"run": configuration["run"], "step": step}


def step_of(configuration: Mapping[str, Any]) -> int:
    step = configuration.get("step")
    return step if isinstance(step, int) else 0


def commit_of(configuration: Mapping[str, Any]) -> str:
    """What each answer names: run, step and attempt of a commit; of another model a digest of what decides a result."""
    if {"run", "step", "attempt"} <= configuration.keys():
        return f"{configuration['run']}/step-{configuration['step']}/{configuration['attempt']}"
    return sha256(json.dumps(configuration, sort_keys=True).encode()).hexdigest()[:12]
