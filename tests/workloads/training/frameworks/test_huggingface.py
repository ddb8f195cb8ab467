"""Where Hugging Face Trainer is weak on Spot: a notice on one rank that is not the first, loader workers, evaluation."""

import subprocess
from pathlib import Path

import pytest

from tests import support
from tests.tools import frameworks
from tests.workloads.training.frameworks.gang import Gang

SCRIPT = Path(__file__).with_name("hf_script.py")
STEPS = 24
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def site() -> Path:
    try:
        return frameworks.install()
    except (OSError, subprocess.CalledProcessError) as error:
        support.unavailable(f"transformers cannot be installed: {error}")


@pytest.fixture(scope="module")
def undisturbed(site: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return Gang(SCRIPT, site=site, folder=folder, steps=STEPS).complete()


def test_a_notice_on_the_second_rank_alone_ends_both_in_order_and_costs_no_bit(
    tmp_path: Path, site: Path, undisturbed: list[str]
) -> None:
    gang = Gang(SCRIPT, site=site, folder=tmp_path, steps=STEPS)
    assert gang.notice_on_rank_1(after="step 13") == [143, 143]
    said = gang.complete()
    assert int(said[0].removeprefix("step ")) > 13, "the resume begins after the last checkpoint, in mid-epoch"
    assert said[-1] == undisturbed[-1]


def test_a_notice_during_evaluation_is_followed_before_the_next_step(tmp_path: Path, site: Path) -> None:
    gang = Gang(SCRIPT, site=site, folder=tmp_path, steps=STEPS)
    assert gang.notice_on_rank_1(after="evaluating") == [143, 143]
    assert gang.complete()[0] in ("step 11", "step 12"), "ten steps were done when the evaluation began"
