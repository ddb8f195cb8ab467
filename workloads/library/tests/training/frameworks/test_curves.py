"""Tests that the curve of a killed Trainer is point by point that of an undisturbed run."""

import json
import signal
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.elastic.gangs import Launched
from workloads.library.tests.training.frameworks.waits import KILL_BEFORE_STEP

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # several starts of torch in each

SCRIPT = str(Path(__file__).with_name("curve_scripts.py"))
SPEEDS = ("_runtime", "_per_second")


class TrackedTrainer(Launched):
    def __init__(self, folder: Path, server: ForkServer, kind: str) -> None:
        super().__init__(folder, server, {})
        self._kind = kind
        self._curves = folder / "curves"
        self._curves.mkdir()

    def start(self, **variables: str) -> int:
        words = [self._kind, str(self.checkpoints), str(self._curves)]
        self.launch(0, [sys.executable, SCRIPT, *words], **variables)
        return self.ended(0)

    def read(self) -> dict[str, Any]:
        """Returns what TensorBoard shows, without speeds."""
        self.launch(1, [sys.executable, SCRIPT, "read", str(self._curves)])
        assert self.ended(1) == 0, self.logs()
        (line,) = [line for line in self.read_log(1).splitlines() if line.startswith("{")]
        shown = json.loads(line)
        for name in [*shown["lines"]]:
            if name.endswith(SPEEDS):
                del shown["lines"][name]
        return shown


# Kills before the first commit; after step 8, whose checkpoint has the losses of two steps that are
# not logged yet; after a value that was logged behind the checkpoint of step 12; before the end.
@pytest.mark.parametrize(("kind", "evaluation"), [("hf", "eval_loss"), ("lightning", "val_loss")])
def test_killed_trainer_has_the_undisturbed_curve(
    tmp_path: Path, framework_server: ForkServer, kind: str, evaluation: str
) -> None:
    with ExitStack() as stack:
        whole = TrackedTrainer(tmp_path / "whole", framework_server, kind)
        stack.enter_context(closing(whole))
        killed = TrackedTrainer(tmp_path / "killed", framework_server, kind)
        stack.enter_context(closing(killed))
        assert whole.start() == 0, whole.logs()
        for step in (
            3,
            9,
            11,
            16,
            20,
        ):
            code = killed.start(**{KILL_BEFORE_STEP: str(step)})
            assert code == -signal.SIGKILL, killed.logs()
        assert killed.start() == 0, killed.logs()
        expected = whole.read()
        shown = killed.read()
        assert shown == expected, killed.logs()
    assert expected["runs"] == 1
    steps = {}
    for name, line in expected["lines"].items():
        steps[name] = [step for step, _ in line]
    assert steps["loss"] == [3, 6, 9, 12, 15, 18]
    assert steps[evaluation] == [10, 20]
