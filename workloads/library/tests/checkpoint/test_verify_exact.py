"""A stranger's loop is shown exact, or which line it lacks."""

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from holdfast.checkpoint.cli import app
from holdfast.checkpoint.verify_exact import verify
from holdfast.contract.errors import InputError, Unjudged
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.forked_command import forked

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
LIBRARY = str(Path(__file__).parents[4] / "workloads" / "library")

# As nanoGPT trains: the next batch is drawn while the present one is computed, dropout draws from the same stream,
# and the learning rate comes from the number of the step.
NANO = """
import sys, torch
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
        loss = nn.functional.cross_entropy(model(X), Y)
        ahead = get_batch()
        loss.backward(); optimizer.step(); optimizer.zero_grad(set_to_none=True)
        #STEP
        ckpt.tick(step + 1)
"""


# As a Trial writes it.
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


def test_all_starts_together_end_in_time(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(Unjudged, match="no end in time"):
        list(verify(recorded(seconds=2), tmp_path, steps=8, timeout_s=5.0))
    assert time.monotonic() - began < 15.0


def test_the_order_of_a_set_is_named_as_the_cause(tmp_path: Path) -> None:
    (first,) = itertools.islice(verify(recorded("[*{*'abcdefgh'}]"), tmp_path, steps=4, timeout_s=300), 1)
    assert "it depends on the order of a set" in first.finding


def recorded(value: str = "0", seconds: float = 0.0) -> list[str]:
    return [sys.executable, "-c", RECORDS.replace("SECONDS", str(seconds)).replace("VALUE", value)]


@pytest.fixture(scope="module")
def python() -> Iterator[tuple[str, ...]]:
    """For all whose start is not under test."""
    server = ForkServer(
        ["torch._dynamo", "torch.optim.adamw", "holdfast.checkpoint.checkpointer"], path=[Path(LIBRARY)]
    )
    with forked(server) as command:
        yield tuple(command)
    server.close()


def verified(folder: Path, script: str, python: tuple[str, ...]) -> Result:
    (folder / "train.py").write_text(script)
    command = [*python, str(folder / "train.py"), str(folder / "own")]
    return CliRunner().invoke(app, ["verify-exact", "--steps", "8", "--", *command])


def test_a_loop_that_prefetches_is_told_which_line_it_lacks_and_is_exact_with_it(
    tmp_path: Path, python: tuple[str, ...]
) -> None:
    without = verified(tmp_path, NANO, python)
    assert without.exit_code == 1, without.output
    assert "write draw = track(draw, ahead=1)" in without.stdout
    assert len(without.stdout.splitlines()) == 1, "the first difference ends it"
    line = 'get_batch = track(get_batch, ahead=1); state["data"] = get_batch'
    # Drawn inside, where the state is restored.
    script = (
        NANO.replace("#STATE", line).replace("#INSIDE", "ahead = get_batch()").replace("\nahead = get_batch()\n", "\n")
    )
    exact = verified(tmp_path, script, python)
    assert exact.exit_code == 0, exact.output
    assert exact.stdout.count(": exact") == 4
    assert not (tmp_path / "own").exists()


def finding(folder: Path, script: str, *python: str) -> str:
    """Of the first way to die."""
    (folder / "train.py").write_text(script)
    command = [*(python or (sys.executable,)), str(folder / "train.py"), str(folder / "own")]
    (first,) = itertools.islice(verify(command, folder, steps=8, timeout_s=850), 1)
    return first.finding


def test_a_scheduler_outside_the_state_is_named(tmp_path: Path, python: tuple[str, ...]) -> None:
    script = NANO.replace("ahead = get_batch()", "ahead = (data[:32].view(4, 8), data[:4])")
    assert 'add "scheduler": scheduler to it' in finding(tmp_path, script.replace("#STEP", "scheduler.step()"), *python)


# Without an optimizer of torch: the first one of a process imports the compiler, which takes longer than the rest.
SEEDED = """
import random, sys, numpy, torch
from holdfast.checkpoint import Checkpointer

torch.manual_seed(1337); torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
#BEFORE
with Checkpointer(sys.argv[1], {"model": model}, run="r") as ckpt:
    #INSIDE
    for step in range(ckpt.step, 1000):
        #DRAW
        model.zero_grad()
        model(X).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 1e-3 * parameter.grad
        #STEP
        ckpt.tick(step + 1)
"""
LOADER = "loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4, shuffle=True, num_workers=2)"


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        (
            {
                "BEFORE": "rng = numpy.random.default_rng(0)",
                "DRAW": "X = torch.tensor(rng.standard_normal((4, 8))).float()",
            },
            "and so does the generator rng, which no checkpoint holds",
        ),
        ({"DRAW": "X = torch.full((4, 8), random.random())"}, "begin with random.seed(0)"),
        (
            {"BEFORE": LOADER, "INSIDE": "batches = iter(loader)", "DRAW": "X = next(batches)"},
            'write loader = track(loader), and add "data": loader',
        ),
        (
            {"BEFORE": "count = 0", "DRAW": "X = torch.full((4, 8), float(count))", "STEP": "count += 1"},
            "and so do count, which are not in the state",
        ),
    ],
    ids=["generator", "random", "shuffling workers", "counter"],
)
def test_the_true_cause_is_named(tmp_path: Path, parts: dict[str, str], cause: str, python: tuple[str, ...]) -> None:
    script = SEEDED
    for part, line in parts.items():
        script = script.replace(f"#{part}", line)
    assert cause in finding(tmp_path, script, *python)


def test_what_cannot_be_judged_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(Unjudged, match="ended with 7"):
        finding(tmp_path, "import sys; sys.exit(7)")
    with pytest.raises(InputError, match="without Checkpointer"):
        finding(tmp_path, "print('no trainer')")
