"""A curve that is an entry of the state, and shows what a checkpoint holds.

    curve = TensorBoardCurve("out/curves")
    with Checkpointer(url, {"model": model, "curve": curve}, run="r") as ckpt:
        for step in range(ckpt.step, total_steps):
            curve.log(step + 1, {"loss": train_step()})
            ckpt.tick(step + 1)

A point reaches the tracker when its step is durable, so a step that is lost was never shown and is
not shown twice. Points that are not known to be there yet are part of the checkpoint.
"""

# Why it is so: infra/decisions/0164.

import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from holdfast.runtime import logs
from holdfast.support.errors import InputError

MAX_POINTS = 100_000
"""Most points that wait for a commit and the tracker; 2.4 MB in each checkpoint."""
MAX_NAME_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Point:
    """One value of one line of a curve."""

    name: str
    step: int
    value: float
    time_s: float


class Tracker(ABC):
    """A tracker that points go to. Its methods are called by one thread, in order."""

    failures: tuple[type[Exception], ...] = (OSError,)
    """Errors after which the same points are tried again at the next commit."""

    @abstractmethod
    def open(self, run_id: str, step: int) -> dict[str, int]:
        """Opens the run of this id, or creates it, and returns the newest step of each line in it.

        `step` is the newest durable one. A tracker that removes later points by itself returns
        none of them.
        """

    @abstractmethod
    def write(self, points: list[Point]) -> None:
        """Adds points, in the order of their steps."""

    @abstractmethod
    def close(self, *, is_complete: bool) -> None:
        """Ends the run in the tracker, for now or for good."""


class Curve:
    """Records points, keeps them in the checkpoint, and passes durable ones to a tracker.

    Every rank records the same values, and rank 0 writes them: where it is lost, another rank has
    them. Checkpointer calls the methods of `holdfast.checkpoint.commit_listeners.CommitListener`.
    """

    def __init__(self, tracker: Tracker) -> None:
        self.id = ""
        """Id of the run in the tracker: the name of the run, and random characters."""
        self._tracker = tracker
        self._run_name = ""
        self._has_begun = False
        self._is_coordinator = False
        self._keeps = False
        """True if the points are part of this rank's checkpoint."""
        self._begun_step = 0
        self._ticked_step = -1
        self._line_steps: dict[str, int] = {}
        """Newest recorded step of each line."""
        self._changed = threading.Condition()
        """Guards what follows, which the thread shares."""
        self._points: deque[Point] = deque()
        self._durable_step = -1
        self._tried_step = -1
        """Durable step whose points were offered to the tracker."""
        self._written_step = -1
        """Durable step whose points the tracker took."""
        self._ending: bool | None = None
        """None: the run goes on; else whether it is complete."""
        self._thread: threading.Thread | None = None
        # Of the thread alone.
        self._newest_steps: dict[str, int] | None = None
        """Newest step that the tracker has of each line; None: it is not open."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Records the values of a step. Called before the tick of that step.

        Raises InputError outside the block of a Checkpointer whose state holds the curve, for a
        step that was ticked, and for a value that is no number.
        """
        if not self._has_begun:
            raise InputError(
                "this curve belongs to no running Checkpointer",
                got=f"log({step}, ...)",
                allowed="log() inside `with Checkpointer(url, state)`, the curve in the state",
                fix='add "curve": curve to the state',
            )
        if step <= self._ticked_step:
            raise InputError(
                "this point would be missing after a restart: its step may be saved already",
                got=f"log({step}, ...) after tick({self._ticked_step})",
                allowed="log() before the tick of the same step",
                fix="move curve.log(step, ...) above ckpt.tick(step)",
            )
        self._add(step, values)

    def log_after_tick(self, values: Mapping[str, float]) -> None:
        """Records values of the newest step after its tick, such as those of an evaluation.

        Only the next checkpoint has them: a run that is killed before it, and resumes from this
        very step, lacks them. A line that has a value of this step keeps it.
        """
        step = max(self._ticked_step, self._begun_step)
        new = {}
        for name, value in values.items():
            newest_step = self._line_steps.get(name, -1)
            if newest_step >= step:
                continue
            new[name] = value
        self._add(step, new)

    def _add(self, step: int, values: Mapping[str, float]) -> None:
        now_s = time.time()
        points: list[Point] = []
        for name, value in values.items():
            point = Point(
                _check_name(name),
                step,
                _check_value(name, value),
                now_s,
            )
            points.append(point)
            self._line_steps[name] = step
        with self._changed:
            self._points.extend(points)
            if len(self._points) > MAX_POINTS:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        dropped = len(self._points) - MAX_POINTS // 2
        for _ in range(dropped):
            self._points.popleft()
        logs.warning(
            "curve",
            f"{self.id}: {dropped} points are dropped: at most {MAX_POINTS} wait for a commit and"
            " for the tracker",
        )

    def state_dict(self) -> dict[str, Any]:
        with self._changed:
            points = [*self._points] if self._keeps else []
        lines: dict[str, list[Point]] = {}
        for point in points:
            lines.setdefault(point.name, []).append(point)
        packed = {name: _pack(lines[name]) for name in sorted(lines)}
        return {"run": self._run_name, "id": self.id, "lines": packed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        points: list[Point] = []
        for name, packed in state["lines"].items():
            points.extend(_unpack(name, packed))
        points.sort(key=attrgetter("step"))
        self.id = state["id"]
        self._run_name = state["run"]
        with self._changed:
            self._points = deque(points)
        self._keeps = bool(points)

    def begin_run(self, run: str, step: int, *, token: str, is_coordinator: bool) -> None:
        # A branch begins with the state of another run, whose curve is not its own.
        if self._run_name != run:
            self._run_name = run
            self.id = f"{run}-{token}"
        # A former block of this process has left its steps and its end.
        self._begun_step = step
        self._ticked_step = -1
        self._line_steps = {}
        self._newest_steps = None
        with self._changed:
            self._durable_step = -1
            self._tried_step = -1
            self._written_step = -1
            self._ending = None
            # A survivor may have committed while it computed the next step.
            self._points = deque(point for point in self._points if point.step <= step)
            for point in self._points:
                self._line_steps[point.name] = point.step
        self._is_coordinator = is_coordinator
        self._keeps = is_coordinator
        self._has_begun = True

    def record_tick(self, step: int) -> None:
        self._ticked_step = step

    def record_commit(self, step: int) -> None:
        if not self._is_coordinator:
            self._record_written(step)
            return
        with self._changed:
            self._durable_step = step
            self._changed.notify()
        if self._thread is None or not self._thread.is_alive():
            # In the background: a tracker that does not answer must not hold up the training.
            self._thread = threading.Thread(target=self._serve, name="curve", daemon=True)
            self._thread.start()

    def take_over(self) -> None:
        self._keeps = True

    def end_run(self, timeout_s: float, *, is_complete: bool) -> None:
        self._has_begun = False
        if self._thread is None:
            return
        with self._changed:
            self._ending = is_complete
            self._changed.notify()
        self._thread.join(timeout_s)
        if self._written_step < self._durable_step:
            logs.warning(
                "curve",
                f"{self.id}: the tracker lacks the points after step {max(self._written_step, 0)};"
                " they are in the checkpoint, and the next start of this run writes them",
            )

    def _serve(self) -> None:
        """Offers the points of each commit to the tracker, until the run ends."""
        while True:
            with self._changed:
                while self._tried_step == self._durable_step and self._ending is None:
                    self._changed.wait()
                step = self._durable_step
                ending = self._ending
            try:
                self._write(step)
                if ending is not None:
                    self._tracker.close(is_complete=ending)
            except self._tracker.failures as error:
                logs.warning(
                    "curve",
                    f"{self.id}: the points up to step {step} wait for the next commit, since the"
                    f" tracker failed: {error!r:.300}",
                )
            self._tried_step = step
            if ending is not None:
                return

    def _write(self, step: int) -> None:
        newest_steps = self._newest_steps
        if newest_steps is None:
            newest_steps = self._newest_steps = self._open(step)
        with self._changed:
            points = [point for point in self._points if point.step <= step]
        new: list[Point] = []
        for point in points:
            if point.step > newest_steps.get(point.name, -1):
                new.append(point)
        if new:
            self._tracker.write(new)
        for point in new:
            newest_steps[point.name] = point.step
        self._record_written(step)

    def _record_written(self, step: int) -> None:
        with self._changed:
            # One commit longer than needed: a tracker that sends in the background may have lost
            # the newest points with the machine.
            while self._points and self._points[0].step <= self._written_step:
                self._points.popleft()
            self._written_step = step

    def _open(self, step: int) -> dict[str, int]:
        newest_steps = self._tracker.open(self.id, step)
        newest = max(newest_steps.values(), default=-1)
        if newest <= step:
            return newest_steps
        # The run went back, by hand or past a damaged checkpoint, and this tracker cannot delete.
        former = self.id
        self.id = f"{former}-{step}"
        logs.warning(
            "curve",
            f"{former} has points up to step {newest}, and this run goes on from step {step}: its"
            f" curve goes on as {self.id}",
        )
        return self._tracker.open(self.id, step)


def _check_name(name: object) -> str:
    if isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARACTERS:
        return name
    raise InputError(
        "a line of a curve has a name that cannot be used",
        got=repr(name)[:80],
        allowed=f"a text of at most {MAX_NAME_CHARACTERS} characters",
        fix='for example log(step, {"loss": loss})',
    )


def _check_value(name: str, value: object) -> float:
    try:
        return float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"the value of {name} is no number",
            got=f"{value!r:.80} (a {type(value).__name__})",
            allowed="a number, or a tensor with one element",
            fix=f'for example {{"{name}": loss.item()}}',
        ) from error


def _pack(points: list[Point]) -> list[bytes]:
    """Returns steps, values and times as bytes: a list of numbers would be stored one by one."""
    return [
        array("q", [point.step for point in points]).tobytes(),
        array("d", [point.value for point in points]).tobytes(),
        array("d", [point.time_s for point in points]).tobytes(),
    ]


def _unpack(name: str, packed: list[bytes]) -> list[Point]:
    steps = array("q")
    values = array("d")
    times = array("d")
    for column, content in zip((steps, values, times), packed, strict=True):
        column.frombytes(content)
    points: list[Point] = []
    for step, value, time_s in zip(steps, values, times, strict=True):
        points.append(Point(name, step, value, time_s))
    return points
