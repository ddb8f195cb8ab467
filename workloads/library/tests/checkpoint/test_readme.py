"""The loops of the README and of the library's page run as they are printed."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint import load_tensors

pytestmark = pytest.mark.process
README = Path(__file__).parents[4] / "README.md"
LIBRARY = README.parent / "workloads/library"


def read_program() -> str:
    """Returns the program after the difference that the README shows."""
    blocks: list[str] = re.findall(r"```diff\n(.*?)```", README.read_text(), re.DOTALL)
    (difference,) = [block for block in blocks if "Checkpointer(" in block]
    program = ""
    for line in difference.splitlines(keepends=True):
        if not line.startswith("-"):
            program += line[1:]
    return program


def test_the_page_imports_only_names_that_an_example_uses() -> None:
    imported = re.compile(r"^\+?(from holdfast\S* import \w+)$", re.MULTILINE)
    shown = imported.findall((LIBRARY / "docs/how-to/checkpoints-in-your-trainer.md").read_text())
    used = set()
    paths = [*(LIBRARY / "holdfast/training/examples").glob("*.py")]
    # torchtitan has a configuration in place of a script.
    paths.append(LIBRARY / "tests/training/frameworks/titan.py")
    for path in paths:
        for line in imported.findall(path.read_text()):
            used.add(line)
    assert len(shown) >= 4
    assert set(shown) <= used


def run(program: str, total_steps: int) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def train_step(*_: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()

    names: dict[str, Any] = {
        "model": model,
        "optimizer": optimizer,
        "train_step": train_step,
        "total_steps": total_steps,
    }
    exec(compile(program, "README.md", "exec"), names)
    return model


def test_the_printed_loop_resumes_with_the_same_bits(
    bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    program = read_program()
    assert "gs://bucket/" in program
    lines = []
    for line in program.splitlines():
        if line.strip() and not line.startswith(("from", "state =")):
            lines.append(line)
    assert len(lines) <= 10
    in_halves = program.replace("gs://bucket/", f"gs://{bucket}/halves/")
    run(in_halves, 3)
    resumed = run(in_halves, 7)
    assert "restored step 3" in caplog.text
    whole = run(program.replace("gs://bucket/", f"gs://{bucket}/whole/"), 7)
    for parameter, expected in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(parameter, expected)
    step, tensors = load_tensors(f"gs://{bucket}/halves/runs")
    assert step == 7
    assert torch.equal(tensors["model/weight"], whole.weight.detach())
