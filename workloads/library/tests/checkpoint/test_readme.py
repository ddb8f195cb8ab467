"""The loops that the README and the library's own page show are run as they stand."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint import load_tensors

pytestmark = pytest.mark.process
README = Path(__file__).parents[4] / "README.md"
LIBRARY = README.parent / "workloads/library"


def of_readme() -> str:
    """What the difference that is shown ends in."""
    blocks: list[str] = re.findall(r"```diff\n(.*?)```", README.read_text(), re.DOTALL)
    (difference,) = [block for block in blocks if "Checkpointer(" in block]
    return "".join(
        line[1:] for line in difference.splitlines(keepends=True) if not line.startswith("-")
    )


def test_what_the_page_of_checkpoints_imports_is_what_an_example_runs_with() -> None:
    imported = re.compile(r"^\+?(from holdfast\S* import \w+)$", re.MULTILINE)
    shown = imported.findall((LIBRARY / "docs/how-to/checkpoints-in-your-trainer.md").read_text())
    used = set()
    for path in (LIBRARY / "holdfast/training/examples").glob("*.py"):
        for line in imported.findall(path.read_text()):
            used.add(line)
    assert len(shown) >= 4 and set(shown) <= used


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


def test_the_loop_that_is_shown_saves_resumes_and_ends_with_the_bits_of_one_run(
    bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program = of_readme()
    assert "gs://bucket/" in program
    lines = []
    for line in program.splitlines():
        if line.strip() and not line.startswith(("from", "state =")):
            lines.append(line)
    assert len(lines) <= 10
    here, there = (
        program.replace("gs://bucket/", f"gs://{bucket}/{part}/") for part in ("halves", "whole")
    )
    run(here, 3)
    resumed = run(here, 7)
    assert "restored step 3" in capsys.readouterr().out
    whole = run(there, 7)
    assert all(
        torch.equal(a, b) for a, b in zip(resumed.parameters(), whole.parameters(), strict=True)
    )
    step, tensors = load_tensors(f"gs://{bucket}/halves/runs")
    assert step == 7 and torch.equal(tensors["model/weight"], whole.weight.detach())
