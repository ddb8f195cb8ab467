"""A user's loop is shown to be exact, or the missing line is named."""

import json
import os
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.checkpoint.cli import app
from holdfast.checkpoint.verify_exact import verify
from holdfast.support.errors import InputError, Unjudged
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.forked_command import fork_command

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
LIBRARY = Path(__file__).parents[4] / "workloads" / "library"

# Trains like nanoGPT: the next batch is drawn while the present one is computed, dropout draws from
# the same stream, and the learning rate comes from the number of the step.
NANO = """
import random, sys, numpy, torch
from torch import nn
from holdfast.checkpoint import Checkpointer, track

torch.manual_seed(1337); torch.set_num_threads(1)
data = torch.randint(0, 50, (4096,))
model = nn.Sequential(nn.Embedding(50, 16), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16 * 8, 50))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)

def get_batch():
    ix = torch.randint(len(data) - 9, (4,))
    return torch.stack([data[i:i + 8] for i in ix]), torch.stack([data[i + 8] for i in ix])

state = {"model": model, "optimizer": optimizer}
#STATE
ahead = get_batch()
with Checkpointer(sys.argv[1], state, run="nano") as ckpt:
    #INSIDE
    for step in range(ckpt.step, 1000):
        X, Y = ahead
        #DRAW
        loss = nn.functional.cross_entropy(model(X), Y)
        ahead = get_batch()
        loss.backward(); optimizer.step(); optimizer.zero_grad(set_to_none=True)
        #STEP
        ckpt.tick(step + 1)
"""
FIXED = NANO.replace("ahead = get_batch()", "ahead = (data[:32].view(4, 8), data[:4])")

# Writes a trace in the format of Trial.
RECORDS = """
import json, os, signal, time
orders = json.load(open(os.environ["HOLDFAST_TRIAL"]))
time.sleep(SECONDS)
with open(orders["trace"] + "0.jsonl", "w") as trace:
    for step in range(1, (orders["die_at"] or orders["steps"]) + 1):
        state = {"model/w": str(VALUE)}
        trace.write(json.dumps({"step": step, "state": state, "unsaved": {}}) + chr(10))
if orders["death"]:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def python() -> Iterator[tuple[str, ...]]:
    """Command of a forked interpreter, for tests that do not test the start."""
    server = ForkServer(
        ["torch._dynamo", "torch.optim.adamw", "holdfast.checkpoint.checkpointer"], path=[LIBRARY]
    )
    with fork_command(server) as command:
        yield tuple(command)
    server.close()


def with_parts(script: str, **parts: str) -> str:
    for part, line in parts.items():
        script = script.replace(f"#{part}", line)
    return script


def recording_command(value: str = "0", seconds: float = 0.0) -> list[str]:
    """Returns a command that writes a trace without training."""
    program = RECORDS.replace("SECONDS", str(seconds)).replace("VALUE", value)
    return [sys.executable, "-c", program]


def finding(
    folder: Path,
    command: list[str],
    steps: int = 8,
) -> str:
    """Returns the finding for the first kind of death."""
    results = verify(
        command,
        folder,
        steps=steps,
        timeout_s=850,
    )
    return next(iter(results)).finding


def script_command(folder: Path, script: str, *python: str) -> list[str]:
    (folder / "train.py").write_text(script)
    return [*python, str(folder / "train.py"), str(folder / "own")]


def test_set_order_is_named_as_the_cause(tmp_path: Path) -> None:
    command = recording_command("[*{*'abcdefgh'}]")
    assert "it depends on the order of a set" in finding(tmp_path, command, steps=4)


def test_verdict_is_printed_as_json() -> None:
    command = [
        "verify-exact",
        "--steps",
        "4",
        "--json",
        "--",
        *recording_command("[*{*'abcdefgh'}]"),
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1, result.output
    answer = json.loads(result.stdout)
    assert answer["schema"] == "holdfast.verify-exact/1"
    assert answer["exact"] is False
    (death,) = answer["deaths"]
    assert "order of a set" in death["finding"]


def test_a_prefetching_loop_gets_a_fix_and_is_exact_with_it(
    tmp_path: Path, python: tuple[str, ...]
) -> None:
    line = 'get_batch = track(get_batch, ahead=1); state["data"] = get_batch'
    # The first batch is drawn inside the block, after the state is restored.
    exact = with_parts(
        NANO.replace("\nahead = get_batch()\n", "\n"), STATE=line, INSIDE="ahead = get_batch()"
    )
    for script, code, shown in (
        (NANO, 1, "write draw = track(draw, ahead=1)"),
        (exact, 0, ": exact"),
    ):
        command = [
            "verify-exact",
            "--steps",
            "8",
            "--",
            *script_command(tmp_path, script, *python),
        ]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == code, result.output
        lines = result.stdout.splitlines()
        assert len(lines) == (1 if code else 4)
        assert result.stdout.count(shown) == len(lines)
    assert not (tmp_path / "own").exists()


LOADER = (
    "loader = torch.utils.data.DataLoader(torch.randint(50, (64, 8)), batch_size=4, shuffle=True,"
    " num_workers=2)"
)


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        ({"STEP": "scheduler.step()"}, 'add "scheduler": scheduler to it'),
        (
            {
                "STATE": "rng = numpy.random.default_rng(0)",
                "DRAW": "X = torch.tensor(rng.integers(50, size=(4, 8)))",
            },
            "and so does the generator rng, which no checkpoint holds",
        ),
        ({"DRAW": "X = torch.full((4, 8), random.randrange(50))"}, "begin with random.seed(0)"),
        (
            {
                "STATE": LOADER,
                "INSIDE": "batches = iter(loader)",
                "DRAW": "X = next(batches)",
            },
            'write loader = track(loader), and add "data": loader',
        ),
        (
            {
                "STATE": "count = 0",
                "DRAW": "X = torch.full((4, 8), count)",
                "STEP": "count += 1",
            },
            "and so do count, which are not in the state",
        ),
    ],
    ids=["scheduler", "generator", "random", "shuffling workers", "counter"],
)
def test_the_true_cause_is_named(
    tmp_path: Path,
    parts: dict[str, str],
    cause: str,
    python: tuple[str, ...],
) -> None:
    command = script_command(tmp_path, with_parts(FIXED, **parts), *python)
    assert cause in finding(tmp_path, command)


def test_a_command_that_cannot_be_judged_is_an_error_in_time(tmp_path: Path) -> None:
    with pytest.raises(Unjudged, match="ended with 7"):
        finding(tmp_path, [sys.executable, "-c", "import sys; sys.exit(7)"])
    with pytest.raises(InputError, match="without Checkpointer"):
        finding(tmp_path, [sys.executable, "-c", "print('no trainer')"])
    fails_by_itself = recording_command("1 // (step < 3 or not orders['die_at'])")
    with pytest.raises(Unjudged, match="ended with 1 after 2 of 5 steps, before it was killed"):
        finding(tmp_path, fails_by_itself)
    started_at = time.monotonic()
    with pytest.raises(Unjudged, match="no end in time"):
        list(
            verify(
                recording_command(seconds=2),
                tmp_path,
                steps=8,
                timeout_s=5.0,
            )
        )
    assert time.monotonic() - started_at < 15.0


def test_output_that_is_no_text_is_shown_all_the_same(tmp_path: Path) -> None:
    """A killed process may end in the middle of a character."""
    program = "import os; os.write(1, b'end\\xc3'); os._exit(7)"
    with pytest.raises(Unjudged, match="ended with 7; its output ends: end"):
        finding(tmp_path, [sys.executable, "-c", program])


def test_command_that_takes_too_long_ends_with_what_it_started(tmp_path: Path) -> None:
    """The ranks of a launcher would keep their GPUs."""
    fifo = tmp_path / "held-open"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    command = ["sh", "-c", f"(echo up; exec sleep 300) > {fifo} & wait"]
    with pytest.raises(Unjudged, match="no end in time"):
        list(
            verify(
                command,
                tmp_path,
                steps=4,
                timeout_s=2.0,
            )
        )
    assert os.read(reader, 10) == b"up\n"
    closed = select.poll()
    closed.register(reader, 0)
    assert closed.poll(10_000), "the process that the command started still runs"
    os.close(reader)
