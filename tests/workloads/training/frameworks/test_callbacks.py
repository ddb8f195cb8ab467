"""Where both frameworks are weak on Spot: a notice on one rank that is not the first, loader workers, evaluation."""

import subprocess
from pathlib import Path

import pytest

from tests import support
from tests.tools import frameworks
from tests.workloads.training.frameworks.gang import Gang

SCRIPTS = {name: Path(__file__).with_name(name) for name in ("hf_script.py", "lightning_script.py")}
STEPS = 24
pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # several starts of torch in each


@pytest.fixture(scope="module")
def site() -> Path:
    try:
        return frameworks.install()
    except (OSError, subprocess.CalledProcessError) as error:
        support.unavailable(f"the frameworks cannot be installed: {error}")


# Epochs have eight steps: a stop soon after 13 is inside the second, one after 15 is likely at its end.
@pytest.mark.parametrize(
    ("script", "after"), [("hf_script.py", 13), ("lightning_script.py", 13), ("lightning_script.py", 15)]
)
def test_a_notice_on_the_second_rank_alone_ends_both_in_order_and_costs_no_bit(
    tmp_path: Path, site: Path, script: str, after: int
) -> None:
    for name in ("undisturbed", "evicted"):
        (tmp_path / name).mkdir()
    undisturbed = Gang(SCRIPTS[script], site=site, folder=tmp_path / "undisturbed", steps=STEPS).complete()
    gang = Gang(SCRIPTS[script], site=site, folder=tmp_path / "evicted", steps=STEPS)
    assert gang.notice_on_rank_1(after=f"step {after}") == [143, 143]
    said = gang.complete()
    assert int(said[0].removeprefix("step ")) > after, "the resume begins after the last checkpoint, in mid-epoch"
    assert said[-1] == undisturbed[-1]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_notice_during_evaluation_is_followed_before_the_next_steps(tmp_path: Path, site: Path, script: str) -> None:
    gang = Gang(SCRIPTS[script], site=site, folder=tmp_path, steps=STEPS)
    assert gang.notice_on_rank_1(after="evaluating") == [143, 143]
    first = next(line for line in gang.complete() if line.startswith("step "))
    assert first in ("step 11", "step 12"), "ten steps were done when the evaluation began"


def test_two_writers_of_checkpoints_are_refused(site: Path, tmp_path: Path) -> None:
    code = (
        "from transformers import TrainingArguments\n"
        "from workloads.training.frameworks.huggingface import HoldfastCallback\n"
        f"args = TrainingArguments(output_dir={str(tmp_path)!r}, save_strategy='steps', use_cpu=True, report_to=[])\n"
        "HoldfastCallback('x').on_init_end(args, None, None)\n"
    )
    root = Path(__file__).parents[4]
    done = Gang.python(code, path=[root, site])
    assert done.returncode == 1
    assert "two parties would write checkpoints" in done.stderr
