"""Curves of the real libraries after kills are point by point those of an undisturbed run."""

import json
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.curves.scripts import BUCKET, KILL_IN_STEP, KILL_IN_WRITE
from workloads.library.tests.training.elastic.gangs import Launched

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # several starts of torch in each

ROOT = Path(__file__).parents[5]
SCRIPTS = str(Path(__file__).with_name("scripts.py"))
STEPS = 23
QUIET = {"MLFLOW_ALLOW_FILE_STORE": "true", "WANDB_SILENT": "true"}
SIGKILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def server(trackers: Path) -> Iterator[ForkServer]:
    imports = (
        "torch._dynamo",
        "torch.optim.adamw",
        "tensorboard.backend.event_processing.event_accumulator",
        "holdfast.checkpoint.checkpointer",
        "holdfast.training.curves.tensorboard",
        "holdfast.training.curves.mlflow",
        "holdfast.training.curves.wandb",
    )
    with closing(ForkServer(imports, path=[ROOT, trackers])) as server:
        yield server


class TrackedRun(Launched):
    """A run in a folder of its own, with its tracker."""

    def __init__(
        self, folder: Path, server: ForkServer, tracker: str, variables: Mapping[str, str]
    ) -> None:
        super().__init__(folder, server, {})
        self._variables = QUIET | variables
        self._tracker = tracker
        self._curves = folder / "curves"
        self._curves.mkdir()

    def start(self, **variables: str) -> int:
        words = [
            self._tracker,
            str(self.checkpoints),
            str(self._curves),
            str(STEPS),
        ]
        self.launch(
            0,
            [sys.executable, SCRIPTS, *words],
            **self._variables,
            **variables,
        )
        return self.ended(0)

    def read(self) -> dict[str, Any]:
        words = ["read", self._tracker, str(self._curves)]
        self.launch(1, [sys.executable, SCRIPTS, *words], **self._variables)
        assert self.ended(1) == 0, self.logs()
        (line,) = [line for line in self.read_log(1).splitlines() if line.startswith("{")]
        return json.loads(line)


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow", "wandb"])
def test_killed_run_has_the_undisturbed_curve(
    tmp_path: Path, server: ForkServer, tracker: str
) -> None:
    check_curve(tmp_path, server, tracker, {}, {})


def test_event_files_in_a_bucket_are_one_curve(
    tmp_path: Path, server: ForkServer, bucket: str, gcs_emulator: str
) -> None:
    in_bucket = {"STORAGE_EMULATOR_HOST": gcs_emulator, BUCKET: f"gs://{bucket}/curves"}
    check_curve(tmp_path, server, "tensorboard", {}, in_bucket)


def check_curve(
    folder: Path,
    server: ForkServer,
    tracker: str,
    of_whole: Mapping[str, str],
    of_killed: Mapping[str, str],
) -> None:
    with ExitStack() as stack:
        whole = TrackedRun(folder / "whole", server, tracker, of_whole)
        stack.enter_context(closing(whole))
        killed = TrackedRun(folder / "killed", server, tracker, of_killed)
        stack.enter_context(closing(killed))
        assert whole.start() == 0, whole.logs()
        # Before the first commit, between two, in a write of which the tracker has half, again in
        # the write that repeats it, and in the last interval.
        for variable, number in (
            (KILL_IN_STEP, "3"),
            (KILL_IN_STEP, "8"),
            (KILL_IN_WRITE, "2"),
            (KILL_IN_WRITE, "1"),
            (KILL_IN_STEP, "23"),
        ):
            assert killed.start(**{variable: number}) == SIGKILLED, killed.logs()
        assert killed.start() == 0, killed.logs()
        expected = whole.read()
        assert killed.read() == expected, killed.logs()
        assert expected["runs"] == 1
        lines = expected["lines"]
        steps_of_loss = [step for step, _ in lines["loss"]]
        assert steps_of_loss == [*range(1, STEPS + 1)]
        steps_of_weight = [step for step, _ in lines["weight"]]
        assert steps_of_weight == [*range(4, STEPS + 1, 4)]
        steps_of_accuracy = [step for step, _ in lines["accuracy"]]
        assert steps_of_accuracy == [7, 14, 21]


def test_offline_journal_adds_rows_to_a_step(tmp_path: Path, server: ForkServer) -> None:
    (tmp_path / "script.py").write_text(
        "import sys, pathlib\n"
        "from holdfast.training.curves.wandb import _Journal\n"
        "journal = _Journal(pathlib.Path(sys.argv[1], 'journal'))\n"
        "journal.write([(1, {'loss': 1.0}), (2, {'loss': 2.0})])\n"
        "journal.write([(2, {'accuracy': 3.0})])\n"
        "print(list(journal.read(2)))\n"
    )
    process = Launched(tmp_path, server, {})
    process.launch(0, [sys.executable, str(tmp_path / "script.py"), str(tmp_path)])
    assert process.ended(0) == 0, process.logs()
    rows = [
        [1, {"loss": 1.0}],
        [2, {"loss": 2.0}],
        [2, {"accuracy": 3.0}],
    ]
    *_, last_line = process.read_log(0).splitlines()
    assert last_line == str(rows)
