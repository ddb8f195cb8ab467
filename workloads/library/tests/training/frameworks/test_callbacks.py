"""Where both frameworks are weak on Spot: a notice on one rank that is not the first, with two loader workers, in an
evaluation or in the first compile."""

import os
import sys
from pathlib import Path

import pytest

from holdfast.contract.errors import InputError
from holdfast.training.frameworks.managed_checkpointer import refuse_deepspeed
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.frameworks.gang import SCRIPTS, Gang
from workloads.library.tests.training.frameworks.waits import COMPILING, EVALUATING

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # several starts of torch in each


@pytest.fixture
def server(framework_server: ForkServer) -> ForkServer:
    return framework_server


# With two ranks epochs have eight steps, with three six: a stop after 5 or 13 is inside one, one after 16 at its end. The
# evaluation stands behind step 10, where nothing is saved but by the stop itself. Accelerate's loop has whole epochs.
# Three ranks: they end in the same bits with the line that the page of checkpoints has for DDP.
# Accelerate sums gradients up over two batches: 5 is in between.
@pytest.mark.parametrize(
    ("kind", "ranks", "steps", "notices"),
    [
        ("hf", 3, 19, {EVALUATING: 10, "step 13": 13}),
        ("lightning", 3, 19, {EVALUATING: 10, "step 13": 13}),
        ("accelerate", 2, 24, {"step 5": 5, "step 16": 16}),
    ],
)
def test_a_notice_on_the_second_rank_alone_ends_all_in_order_and_costs_no_bit(
    tmp_path: Path, site: Path, server: ForkServer, kind: str, ranks: int, steps: int, notices: dict[str, int]
) -> None:
    def gang(name: str) -> Gang:
        return Gang(kind, site=site, folder=tmp_path / name, steps=steps, server=server, ranks=ranks)

    noticed, first_steps = gang("noticed"), list[int]()
    for after in notices:
        assert noticed.notice_on_rank_1(after) == [143] * ranks, noticed.errors()
        first_steps.append(noticed.first_step())
    printed = noticed.complete()
    for (after, done), first in zip(notices.items(), [*first_steps[1:], noticed.first_step()], strict=True):
        assert first > done, "the resume begins after the last checkpoint, in mid-epoch"
        assert after != EVALUATING or first <= done + 2, "the evaluation itself heard the notice"
    assert printed[-1] == gang("whole").complete()[-1]


# Crashes one after the other: inside an epoch, at its end, and in one more; validation behind each epoch, and between.
@pytest.mark.parametrize(
    ("shuffle", "workers", "validation", "crashes"),
    [
        ("shuffle", 0, "epoch", "3,5,8,10"),
        ("shuffle", 2, "steps", "3,5,8"),
        ("in order", 2, "epoch", "3,5,10"),
    ],
)
def test_lightning_without_ddp_goes_on_with_the_same_samples_and_the_same_stream(
    tmp_path: Path, server: ForkServer, shuffle: str, workers: int, validation: str, crashes: str
) -> None:
    with (tmp_path / "out").open("w+") as out, (tmp_path / "err").open("w+") as err:
        command = [sys.executable, SCRIPTS, "exact", shuffle, str(workers), validation, crashes]
        code = server.start(command, env=os.environ, out=out, err=err, session=True).wait(600)
        assert code == 0, (tmp_path / "err").read_text()[-4000:]
    printed = (tmp_path / "out").read_text()
    assert printed.count("restored step ") == len(crashes.split(","))
    whole, resumed = [line for line in printed.splitlines() if line.startswith("digest ")]
    assert whole == resumed


def test_a_notice_during_a_compile_that_does_not_end_is_followed_inside_the_window(
    tmp_path: Path, site: Path, server: ForkServer
) -> None:
    gang = Gang("hf", site=site, folder=tmp_path, steps=10, server=server)
    assert gang.notice_on_rank_1(COMPILING, window_s=5) == [143, 143], gang.errors()


def test_two_writers_of_checkpoints_are_refused(server: ForkServer, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from transformers import TrainingArguments\n"
        "from holdfast.training.frameworks.huggingface import HoldfastCallback\n"
        f"args = TrainingArguments(output_dir={str(tmp_path)!r}, save_strategy='steps', use_cpu=True, report_to=[])\n"
        "HoldfastCallback('x').on_init_end(args, None, None)\n"
    )
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        process = server.start([sys.executable, str(script)], env=os.environ, out=out, err=err, session=True)
        assert process.wait(200) == 1
    assert "both the Trainer and Holdfast would write checkpoints" in (tmp_path / "err").read_text()


def test_deepspeed_is_refused_with_what_to_use_instead() -> None:
    for strategy in ("DistributedType.DEEPSPEED", "deepspeed=zero3.json", "DeepSpeedStrategy"):
        with pytest.raises(InputError, match="fully_shard"):
            refuse_deepspeed(strategy)
    refuse_deepspeed("DistributedType.MULTI_CPU")
