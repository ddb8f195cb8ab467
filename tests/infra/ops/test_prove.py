"""A proof from end to end with failures injected: whatever happens, it destroys, and says what it
left.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.vocabulary.exit_codes import EXIT_FINDINGS
from infra.ops import prove
from infra.ops.prove import Script, Step
from tests.infra.ops.google import Gcloud
from tests.infra.samples import EXAMPLE

pytestmark = pytest.mark.process
CLEAN_UP = ("destroy", "leftovers", "leftovers-of-run")
# The program is `python -c CODE FILE`: what is deployed is a file.
CODE = {"deploy": "open(made, 'w')", "destroy": "os.remove(made)"}
INTERRUPTED = "os.kill(os.getppid(), signal.SIGINT); time.sleep(100)"
Proof = Callable[..., tuple[int, dict[str, str], str]]


def step(name: str, code: str, *words: str) -> Step:
    return Step(name, 1, (sys.executable, "-ISc", code, *words))


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    return tmp_path / "made"


@pytest.fixture
def proof(
    gcloud: Gcloud,
    deployment: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Proof:
    """Returns a function that plays the steps of a proof. `faults`: code that a step runs instead.
    The function returns the exit code, the verdict of each step, and what was printed.
    """
    gcloud.refuse("container clusters describe", "NOT_FOUND: no such cluster")
    gcloud.refuse("storage buckets describe", "404: no such bucket")
    real = prove.steps

    def play_proof(**faults: str) -> tuple[int, dict[str, str], str]:
        codes = CODE | faults
        head = "import os, signal, sys, time; made = sys.argv[1]; "

        def steps(*given: Any) -> list[Step]:
            replayed_steps: list[Step] = []
            for real_step in real(*given):
                replayed_steps.append(
                    step(real_step.name, head + codes.get(real_step.name, "pass"), str(deployment))
                )
            return replayed_steps

        monkeypatch.setattr(prove, "steps", steps)
        code = prove.prove(
            EXAMPLE,
            max_usd=100,
            yes=True,
            out=tmp_path / "proofs",
        )
        shown = capsys.readouterr()
        rows = []
        for line in shown.out.partition("VERDICT")[2].splitlines()[1:]:
            rows.append(line.split())
        texts = {row[0]: " ".join(row[1:-1]) for row in rows}
        return code, texts, shown.err

    return play_proof


def test_a_proof_holds_and_leaves_nothing(proof: Proof, deployment: Path) -> None:
    code, steps, printed = proof()
    assert (code, deployment.exists(), set(steps.values())) == (0, False, {"held"}), printed
    assert list(steps)[:2] == ["doctor", "deploy"]
    assert tuple(steps)[-3:] == CLEAN_UP
    assert {"try", "drill-train-gang", "drill-batch-drain", "receipt-train-gang"} <= set(steps)
    assert "--run example-" in printed, (
        "how to clean up after a kill is printed before anything is made"
    )


@pytest.mark.parametrize(
    ("faults", "last", "word"),
    [
        (
            {"deploy": "open(made, 'w'); sys.exit('Quota exceeded')"},
            ("deploy", *CLEAN_UP),
            "Quota exceeded",
        ),
        (
            {"drill-train-gang": "sys.exit('1 objective missed')"},
            ("drill-train-gang", *CLEAN_UP),
            "1 objective missed",
        ),
        # nothing is there yet
        ({"doctor": "sys.exit('quota: 0 of 16')"}, ("doctor",), "quota: 0 of 16"),
        ({"leftovers": "sys.exit('disk pvc-1 bills')"}, CLEAN_UP, "--remove"),
    ],
)
def test_a_failure_destroys(
    proof: Proof,
    deployment: Path,
    faults: dict[str, str],
    last: tuple[str, ...],
    word: str,
) -> None:
    code, steps, printed = proof(**faults)
    assert (code, deployment.exists(), tuple(steps)[-len(last) :]) == (EXIT_FINDINGS, False, last)
    names = []
    for name, verdict in steps.items():
        if verdict != "held":
            names.append(name)
    assert names == list(faults)
    assert word in printed


def test_second_interrupt_ends_the_destroy_and_still_lists_leftovers(
    proof: Proof, deployment: Path
) -> None:
    """The proof goes on to the destroy after a first interrupt, halfway through the apply."""
    code, steps, printed = proof(deploy=f"open(made, 'w'); {INTERRUPTED}", destroy=INTERRUPTED)
    assert (code, deployment.exists()) == (EXIT_FINDINGS, True)
    assert steps["deploy"] == steps["destroy"] == "interrupted"
    assert tuple(steps)[-2:] == CLEAN_UP[1:]
    assert "make destroy ENV=example" in printed.splitlines()[-1]


def test_clean_up_follows_failed_starts_and_the_paid_times_end(tmp_path: Path) -> None:
    slow = [step(name, "import time; time.sleep(60)") for name in ("a", "b")]
    for steps, within_s, verdict in (
        (
            [Step("a", 1, ("no-such-program",))],
            600.0,
            "[Errno 2] No such file or directory: 'no-such-program'",
        ),
        (slow, 59.0, "not begun"),
    ):
        script = Script(folder=tmp_path, run="r")
        assert not script.play(steps, [step("away", "pass")], within_s)
        assert [row[:2] for row in script.done] == [("a", verdict), ("away", "held")]


def test_clean_up_follows_a_step_that_outlasts_the_paid_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time ends as soon as the step runs, however long a busy machine takes to start it."""
    begun = tmp_path / "begun"

    def read_clock() -> float:
        return 100.0 if begun.exists() else 0.0

    clock = SimpleNamespace(monotonic=read_clock, sleep=time.sleep)
    monkeypatch.setattr(prove, "time", clock)
    code = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(100)"
    steps = [step("a", code, str(begun)), step("b", "pass")]
    script = Script(folder=tmp_path, run="r")
    assert not script.play(steps, [step("away", "pass")], 62.0)
    assert [row[:2] for row in script.done] == [("a", "too long"), ("away", "held")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_at_a_steps_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    started = subprocess.Popen

    def interrupt(*args: Any, **options: Any) -> Any:
        child: Any = started(*args, **options)
        os.kill(os.getpid(), number)
        return child

    monkeypatch.setattr(subprocess, "Popen", interrupt)
    script = Script(folder=tmp_path, run="r")
    assert not script.play(
        [step(name, "import time; time.sleep(100)") for name in ("a", "b")], [], 60
    )
    assert [row[:2] for row in script.done] == [("a", "interrupted")]
