"""Where both frameworks are weak on Spot: a notice on one rank that is not the first, with two
loader workers, in an evaluation or in the first compile.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from holdfast.support.errors import InputError
from holdfast.training.frameworks.managed_checkpointer import refuse_deepspeed
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.elastic.gangs import Launched
from workloads.library.tests.training.frameworks.gang import SCRIPTS, Gang
from workloads.library.tests.training.frameworks.waits import COMPILING, EVALUATING

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # several starts of torch in each


Make = Callable[..., Gang]


@pytest.fixture
def make(tmp_path: Path, site: Path, framework_server: ForkServer) -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda kind, name="gang", **options: stack.enter_context(
            closing(
                Gang(
                    kind,
                    site=site,
                    folder=tmp_path / name,
                    server=framework_server,
                    **options,
                )
            )
        )


# Epochs have eight steps with two ranks, and six with three: a stop after step 5 or 13 is inside an
# epoch, one after step 16 at the end of one. The evaluation is after step 10, where only the stop
# itself saves. Accelerate's loop has whole epochs. Three ranks end in the same bits because of the
# line that the page of checkpoints has for DDP. Accelerate accumulates gradients over two batches:
# step 5 is in between.
@pytest.mark.parametrize(
    ("kind", "size", "steps", "notices"),
    [
        ("hf", 3, 19, {EVALUATING: 10, "step 13": 13}),
        ("lightning", 3, 19, {EVALUATING: 10, "step 13": 13}),
        ("accelerate", 2, 24, {"step 5": 5, "step 16": 16}),
    ],
)
def test_notice_on_one_rank_stops_all_cleanly_and_costs_no_bit(
    make: Make,
    kind: str,
    size: int,
    steps: int,
    notices: dict[str, int],
) -> None:
    noticed = make(kind, steps=steps, size=size)
    first_steps = list[int]()
    for after in notices:
        assert noticed.notice_on_rank_1(after) == [143] * size, noticed.logs()
        first_steps.append(noticed.first_step())
    digest = noticed.complete()
    for (after, done), first in zip(
        notices.items(), [*first_steps[1:], noticed.first_step()], strict=True
    ):
        assert first > done, "the resume begins after the last checkpoint, in mid-epoch"
        assert after != EVALUATING or first <= done + 2, "the evaluation itself heard the notice"
    assert digest == make(kind, "whole", steps=steps, size=size).complete()


# Several crashes in a row: inside an epoch, at its end, and in a later one; validation after each
# epoch, and within one.
@pytest.mark.parametrize(
    ("shuffle", "workers", "validation", "crashes"),
    [
        ("shuffle", 0, "epoch", "3,5,8,10"),
        ("shuffle", 2, "steps", "3,5,8"),
        ("in order", 2, "epoch", "3,5,10"),
    ],
)
def test_lightning_without_ddp_resumes_with_the_same_samples_and_stream(
    tmp_path: Path,
    framework_server: ForkServer,
    shuffle: str,
    workers: int,
    validation: str,
    crashes: str,
) -> None:
    process = Launched(tmp_path, framework_server, {})
    process.launch(
        0,
        [
            sys.executable,
            SCRIPTS,
            "exact",
            shuffle,
            str(workers),
            validation,
            crashes,
        ],
    )
    assert process.processes[0].wait(600) == 0, process.logs()
    assert process.read_log(0).count("restored step ") == len(crashes.split(","))
    whole, resumed = (
        line for line in process.read_log(0).splitlines() if line.startswith("digest ")
    )
    assert whole == resumed


def test_notice_during_an_endless_compile_is_obeyed_within_the_window(make: Make) -> None:
    gang = make("hf", steps=10)
    assert gang.notice_on_rank_1(COMPILING, window_s=5) == [143, 143], gang.logs()


def test_two_checkpoint_writers_are_rejected(tmp_path: Path, framework_server: ForkServer) -> None:
    script = tmp_path / "script.py"
    process = Launched(tmp_path, framework_server, {})
    script.write_text(
        "from transformers import TrainingArguments\nfrom holdfast.training.frameworks.huggingface"
        f" import HoldfastCallback\nargs = TrainingArguments(output_dir={str(tmp_path)!r},"
        " save_strategy='steps', use_cpu=True,"
        " report_to=[])\nHoldfastCallback('x').on_init_end(args, None, None)\n"
    )
    process.launch(0, [sys.executable, str(script)])
    assert process.all_ended() == [1]
    assert "both the Trainer and Holdfast would write checkpoints" in process.read_log(0)


def test_deepspeed_is_refused_with_what_to_use_instead() -> None:
    for strategy in ("DistributedType.DEEPSPEED", "deepspeed=zero3.json", "DeepSpeedStrategy"):
        with pytest.raises(InputError, match="fully_shard"):
            refuse_deepspeed(strategy)
    refuse_deepspeed("DistributedType.MULTI_CPU")
