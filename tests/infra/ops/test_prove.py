"""A proof from end to end with every failure injected: whatever happens, it destroys, and says what it left."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.contract.exit_codes import EXIT_FINDINGS
from infra.ops.prove import Script, Step

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
HERE = Path(__file__).parent
NOT_THERE = "NOT_FOUND: it is not there"
CLEAN_UP = ["destroy", "leftovers", "leftovers"]
FAULTS: dict[str, dict[str, str]] = {
    "quota": {"deploy": "network"},
    "an error of the API half way": {"deploy": "pool"},
    "a stock-out of the gang": {"jobset --timeout=45m": "error: timed out waiting for the condition on jobsets"},
    "work that does not come back": {"drill": "1 of 3 objectives missed"},
}


class Place:
    """The folder of one project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hung: list[int] = []
        """Steps that waited without end; one whose proof is killed lives on, in a session of its own."""
        self.started: list[subprocess.Popen[str]] = []
        shutil.copy(HERE / "stand_in.py", folder)
        for name in ("python", "kubectl", "gcloud"):
            shell = f'#!/bin/sh\nexec {sys.executable} -IS {folder}/stand_in.py {name} "$@"\n'
            (folder / name).write_text(shell)
            (folder / name).chmod(0o755)
        self.breaks()

    def breaks(self, **faults: str) -> None:
        """Besides, nothing is deployed at the beginning."""
        absent = {"clusters describe": NOT_THERE, "buckets describe": NOT_THERE}
        (self.folder / "faults.json").write_text(json.dumps(faults | absent))

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.infra.ops.play", str(self.folder)]
        self.started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return self.started[-1]

    def end(self, process: subprocess.Popen[str]) -> tuple[int, dict[str, str], str]:
        """Exit code, verdict of each step, and what it printed."""
        out, err = process.communicate(timeout=100)
        assert "VERDICT" in out, err
        rows = [line.split() for line in out.partition("VERDICT")[2].splitlines()[1:]]
        return process.returncode, {row[0]: " ".join(row[1:-1]) for row in rows}, err

    @property
    def made(self) -> bool:
        return (self.folder / "made").exists()

    def verbs(self) -> list[str]:
        lines = (self.folder / "calls.jsonl").read_text().splitlines()
        return [words[min(3, len(words) - 1)] for words in map(json.loads, lines) if words[0] == "python"]

    def wait_until_it_hangs(self, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + 60
        while not (self.folder / "hanging").exists():
            assert process.poll() is None and time.monotonic() < deadline, "it never began to hang"
            time.sleep(0.02)
        self.hung.append(int((self.folder / "hanging").read_text()))
        (self.folder / "hanging").unlink()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    for pid in place.hung:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for process in place.started:
        with process:
            process.kill()


def test_a_proof_holds_and_leaves_nothing(place: Place) -> None:
    code, steps, printed = place.end(place.start())
    assert (code, place.made, set(steps.values())) == (0, False, {"held"}), printed
    assert list(steps)[:2] == ["doctor", "deploy"] and list(steps)[-3] == "destroy"
    assert {"try", "drill-train-gang", "drill-batch-drain", "receipt-train-gang"} <= set(steps)
    assert "--run example-" in printed, "how to clean up after a kill is printed before anything is made"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_proof_that_fails_destroys(place: Place, fault: str) -> None:
    place.breaks(**FAULTS[fault])
    code, steps, printed = place.end(place.start())
    assert (code, place.made, place.verbs()[-3:]) == (EXIT_FINDINGS, False, CLEAN_UP)
    assert list(steps.values()).count("exit 1") == 1
    assert FAULTS[fault].get("deploy", next(iter(FAULTS[fault].values()))) in printed


def test_a_program_that_is_missing_fails_its_step_and_the_clean_up_follows(tmp_path: Path) -> None:
    script = Script(folder=tmp_path, run="r")
    assert not script.play([Step("a", 1, ("no-such-program",))], [Step("away", 1, (sys.executable, "-c", ""))], 600)
    (_, verdict, _), (_, cleaned, _) = script.done
    assert "no-such-program" in verdict and cleaned == "held"


def test_what_a_destroy_leaves_is_said_with_the_way_to_remove_it(place: Place) -> None:
    place.breaks(leftovers="disk pvc-1 bills")
    code, steps, printed = place.end(place.start())
    assert (code, steps["destroy"], steps["leftovers"]) == (EXIT_FINDINGS, "held", "exit 1")
    assert "disk pvc-1 bills" in printed and "--remove" in printed.splitlines()[-1]


def test_what_was_paid_for_ends_the_proof_and_not_the_clean_up(tmp_path: Path) -> None:
    def step(name: str, code: str) -> Step:
        return Step(name, 1, (sys.executable, "-c", code))

    steps = [step(name, "import time; time.sleep(60)") for name in ("a", "b")]
    script = Script(folder=tmp_path, run="r")
    assert not script.play(steps, [step("away", "pass")], 60.5)
    assert [row[:2] for row in script.done] == [("a", "too long"), ("away", "held")]
    assert not script.play(steps, [step("away", "pass")], 59)
    assert [row[:2] for row in script.done[2:]] == [("a", "not begun"), ("away", "held")]


def test_what_is_missing_before_the_start_costs_nothing(place: Place) -> None:
    place.breaks(doctor="quota: 0 of 16")
    code, steps, _ = place.end(place.start())
    assert (code, steps) == (EXIT_FINDINGS, {"doctor": "exit 1"})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_half_way_through_the_apply_destroys(place: Place, number: signal.Signals) -> None:
    place.breaks(deploy="hangs")
    process = place.start()
    place.wait_until_it_hangs(process)
    assert place.made
    process.send_signal(number)
    code, steps, _ = place.end(process)
    assert (code, steps["deploy"], steps["destroy"], place.made) == (EXIT_FINDINGS, "interrupted", "held", False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_in_the_moment_a_step_starts_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    started = subprocess.Popen

    def interrupted(*args: Any, **options: Any) -> Any:
        child: Any = started(*args, **options)
        os.kill(os.getpid(), number)
        return child

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    script = Script(folder=tmp_path, run="r")
    assert not script.play([Step("a", 0.5, (sys.executable, "-c", "import time; time.sleep(100)"))], [], 60)
    assert [row[1] for row in script.done] == ["interrupted"]


def test_a_second_interrupt_ends_the_destroy_and_what_is_left_is_still_looked_for(place: Place) -> None:
    place.breaks(deploy="hangs", destroy="hangs")
    process = place.start()
    for _ in range(2):
        place.wait_until_it_hangs(process)
        process.send_signal(signal.SIGINT)
    code, steps, printed = place.end(process)
    assert (code, steps["destroy"], place.made) == (EXIT_FINDINGS, "interrupted", True)
    assert place.verbs()[-2:] == CLEAN_UP[1:] and "make destroy ENV=example" in printed.splitlines()[-1]
