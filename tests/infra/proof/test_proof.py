"""A proof from end to end with every failure injected: whatever happens, nothing that bills is left, or it is named."""

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
from infra.proof.journal import Journal
from infra.proof.runner import TIMED_OUT, Runner
from infra.proof.steps import Step

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
HERE = Path(__file__).parent
NOT_THERE = "NOT_FOUND: it is not there"
FAULTS: dict[str, dict[str, str]] = {
    "quota": {"deploy": "network"},
    "an error of the API half way": {"deploy": "pool"},
    "a stock-out of the gang": {"jobset --timeout=45m": "error: timed out waiting for the condition on jobsets"},
    "a stock-out of the batch": {"wait --for=jsonpath={.status.ready}=2": "error: timed out waiting for the condition"},
    "an image that cannot be pushed": {"images build": "denied: quota"},
    "operators that do not answer": {"operators": "webhook of Kueue"},
    "work that does not come back": {"drill": "1 of 3 objectives missed"},
    "no receipt": {"--timeout=10m": "error: timed out"},
}


class Place:
    """The folder of one project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hung: list[int] = []
        """Steps that waited for ever; one whose proof is killed lives on, in a session of its own."""
        self.started: list[subprocess.Popen[str]] = []
        shutil.copy(HERE / "stand_in.py", folder)
        for name in ("kubectl", "gcloud"):
            shell = f'#!/bin/sh\nexec {sys.executable} -IS {folder}/stand_in.py {name} "$@"\n'
            (folder / name).write_text(shell)
            (folder / name).chmod(0o755)
        self.breaks()

    def breaks(self, **faults: str) -> None:
        """Beside that nothing is deployed at the beginning."""
        absent = {"clusters describe": NOT_THERE, "buckets describe": NOT_THERE}
        (self.folder / "faults.json").write_text(json.dumps(faults | absent))

    def start(self, verb: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.infra.proof.play", str(self.folder), verb]
        self.started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return self.started[-1]

    def run(self, verb: str) -> tuple[int, dict[str, Any]]:
        process = self.start(verb)
        out, err = process.communicate(timeout=100)
        assert out, err
        return process.returncode, json.loads(out)

    @property
    def made(self) -> bool:
        return (self.folder / "made").exists()

    def verbs(self) -> list[str]:
        lines = (self.folder / "calls.jsonl").read_text().splitlines()
        return [words[1] for words in map(json.loads, lines) if words[0] in ("infra", "workloads")]

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
    code, found = place.run("prove")
    assert (code, found["state"], place.made) == (0, "clean", False)
    assert all(step["held"] for step in found["steps"])
    names = [step["step"] for step in found["steps"]]
    assert names[:2] == ["doctor", "deploy"] and names[-2:] == ["destroy", "leftovers"]
    assert {"maintenance-train-gang", "maintenance-batch-drain", "receipt-train-gang"} <= set(names)
    environment = place.run("clean")
    assert environment[0] == 0 and environment[1]["removals"] == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_proof_that_fails_is_cleaned_up(place: Place, fault: str) -> None:
    place.breaks(**FAULTS[fault])
    code, found = place.run("prove")
    assert (code, found["state"], place.made) == (EXIT_FINDINGS, "clean", False)
    assert not all(step["held"] for step in found["steps"])
    assert place.verbs()[-2:] == ["destroy", "leftovers"]


def test_what_was_paid_for_ends_the_proof_and_not_the_clean_up(tmp_path: Path) -> None:
    def step(name: str, code: str, limit_s: float) -> Step:
        return Step(name=name, command=(sys.executable, "-c", code), limit_s=limit_s, holds=name)

    proof = [step(name, "import time; time.sleep(60)", 60) for name in ("a", "b")]
    journal = Journal(run="r", environment="example", usd=1.0)
    runner = Runner(tmp_path / "run", journal, {}, lambda line: None)
    assert not runner.run(proof, [step("away", "pass", 60)], 60.5)
    assert [(done.step, done.code) for done in journal.steps] == [("a", TIMED_OUT), ("away", 0)]
    assert not runner.run(proof, [step("away", "pass", 60)], 60)
    begun = [(done.step, done.code) for done in journal.steps[2:]]
    assert begun == [("a", TIMED_OUT)], "what has no time left is not begun, and needs no clean-up"


def test_what_is_missing_before_the_start_costs_nothing(place: Place) -> None:
    place.breaks(doctor="quota: 0 of 16")
    code, found = place.run("prove")
    assert (code, [step["step"] for step in found["steps"]]) == (EXIT_FINDINGS, ["doctor"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_half_way_through_the_apply_is_cleaned_up(place: Place, number: signal.Signals) -> None:
    place.breaks(deploy="hangs")
    process = place.start("prove")
    place.wait_until_it_hangs(process)
    assert place.made
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_FINDINGS, err
    assert (json.loads(out)["state"], place.made) == ("clean", False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_in_the_moment_a_step_starts_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    started = subprocess.Popen

    def interrupted(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        child = started(*args, **options)
        os.kill(os.getpid(), number)
        return child

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    journal = Journal(run="r", environment="example", usd=1.0)
    runner = Runner(tmp_path / "run", journal, {}, lambda line: None)
    step = Step(name="a", command=(sys.executable, "-c", "import time; time.sleep(100)"), limit_s=30, holds="a")
    assert not runner.run([step], [], 60)
    assert [done.code for done in journal.steps] != [TIMED_OUT]


def test_what_a_second_interrupt_leaves_is_removed_by_the_janitor(place: Place) -> None:
    place.breaks(deploy="hangs", destroy="hangs")
    process = place.start("prove")
    for _ in range(2):
        place.wait_until_it_hangs(process)
        process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, json.loads(out)["state"], place.made) == (EXIT_FINDINGS, "left", True)
    place.breaks()
    code, found = place.run("clean")
    assert (code, found["runs"], place.made) == (0, [], False)


def test_what_a_killed_proof_leaves_is_removed_by_the_janitor(place: Place) -> None:
    place.breaks(drill="hangs")
    process = place.start("prove")
    place.wait_until_it_hangs(process)
    process.kill()
    process.communicate(timeout=60)
    assert place.made
    place.breaks()
    code, found = place.run("clean")
    assert (code, found["runs"], place.made) == (0, [], False)
