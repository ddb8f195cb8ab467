"""The user's view: a loop with a Checkpointer, stopped and started again."""

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint import Checkpointer, Tuning, load_tensors
from holdfast.checkpoint.state import capture
from holdfast.support.errors import InputError
from tests.support import commits
from workloads.library.tests.checkpoint.jobs import WIDTH, advance, build, digest

pytestmark = pytest.mark.process


def train(url: Path, state: dict[str, Any], steps: int, **options: Any) -> Checkpointer:
    torch.manual_seed(7 if not url.exists() else 8)  # 8: restore must overrule it
    with Checkpointer(
        url,
        state,
        run="test",
        **{"every": 3, **options},
    ) as ckpt:
        for step in range(ckpt.step, steps):
            advance(state)
            ckpt.tick(step + 1)
    return ckpt


def bits(state: dict[str, Any]) -> str:
    return digest(capture(state).tensors)


def test_a_resumed_run_ends_with_the_bits_that_a_whole_run_has(tmp_path: Path) -> None:
    whole = build()
    second = build()
    train(tmp_path / "whole", whole, 11)
    train(tmp_path / "halves", build(), 5)
    resumed = train(tmp_path / "halves", second, 11)
    assert resumed.restored is not None
    assert resumed.restored.step == 5
    assert bits(second) == bits(whole)
    assert second["progress"] == whole["progress"] == {"at": 11}


def test_a_commit_names_the_code_that_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest_of_code = f"sha256:{'5e' * 32}"
    sources: list[str | None] = []
    for number, value in enumerate((None, digest_of_code, "no digest")):
        if value is not None:
            monkeypatch.setenv("HOLDFAST_SOURCE", value)
        train(tmp_path / str(number), build(), 3)
        (file,) = (tmp_path / str(number)).rglob("COMMIT.json")
        sources.append(json.loads(file.read_text())["body"].get("source"))
        train(tmp_path / str(number), build(), 4)  # such a commit is restored
    assert sources == [None, digest_of_code, None]


@pytest.mark.parametrize(
    ("file", "damage", "reason"),
    [
        ("*.bin", lambda data: bytes(len(data)), "crc32c"),
        ("COMMIT.json", lambda data: data[:-9], "the commit is not whole"),
    ],
    ids=["shard", "commit"],
)
def test_a_damaged_checkpoint_is_skipped_and_later_replaced(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    file: str,
    damage: Callable[[bytes], bytes],
    reason: str,
) -> None:
    train(tmp_path, build(), 6)
    damaged = next((tmp_path / "test/step-0000000006").rglob(file))
    damaged.write_bytes(damage(damaged.read_bytes()))
    ckpt = train(tmp_path, build(), 6)
    assert ckpt.restored is not None
    assert ckpt.restored.step == 3
    assert reason in ckpt.restored.skipped[0][1]
    assert "skipped step 6: rank 0: " in caplog.text
    assert load_tensors(str(tmp_path))[0] == 6


def test_another_model_or_optimizer_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    state = build()
    train(tmp_path, state, 3)
    other = build()
    other["model"][2] = torch.nn.Linear(WIDTH, WIDTH + 1)
    other["optimizer"] = torch.optim.AdamW(other["model"].parameters())
    before = bits(other)
    with pytest.raises(InputError, match="another model"):
        train(tmp_path, other, 6)
    assert bits(other) == before
    state["optimizer"] = torch.optim.SGD(state["model"].parameters(), lr=0.1)
    with pytest.raises(
        InputError, match=r"optimizer optimizer is not of the type.*SGD, with .*saved were .*betas"
    ):
        train(tmp_path, state, 6)


def test_the_automatic_interval_saves_and_logs_the_window(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {
        "every": "auto",
        "tuning": Tuning(min_interval_s=0.05, max_interval_s=0.2),
    }
    with Checkpointer(
        tmp_path,
        build(),
        window_s=15,
        **options,
    ) as ckpt:
        step = 0
        while len(commits(tmp_path)) < 2 or "upload" not in caplog.text:
            step += 1
            time.sleep(0.001)
            ckpt.tick(step)
            if step % 50 == 0:
                ckpt.wait()
            assert step < 20_000
    with Checkpointer(tmp_path, build(), **options) as ckpt:
        assert ckpt.step == step


def test_a_call_outside_the_block_says_so(tmp_path: Path) -> None:
    before = Checkpointer(tmp_path, build(), run="test")
    after = train(tmp_path, build(), 3)
    assert after.durable_step == 3
    assert not after.busy
    for ckpt, when in ((before, "before"), (after, "after")):
        calls = (
            partial(ckpt.tick, 9),
            partial(ckpt.save, 9),
            ckpt.poll,
            ckpt.wait,
            ckpt.lock().__enter__,
        )
        for call in calls:
            with pytest.raises(InputError, match=rf"not in use.*{when} its `with` block"):
                call()
    with pytest.raises(InputError, match=r"not in use.*before its `with` block"):
        _ = before.busy


def test_a_fork_saves_nothing_and_leaves_the_trainer_alone(tmp_path: Path) -> None:
    with Checkpointer(
        tmp_path,
        build(),
        run="test",
        every=1,
    ) as ckpt:
        ckpt.tick(1)
        child = os.fork()
        if not child:
            code = 1
            try:
                ckpt.tick(2)
            except InputError as error:
                code = 0 if "forked from the trainer" in str(error) else 2
                ckpt.__exit__(None, None, None)
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        ckpt.tick(2)
    assert load_tensors(str(tmp_path))[0] == 2


@pytest.mark.parametrize(
    "options",
    [
        {"keep": 2.5},
        {"tuning": {"shard_bytes": 64e6}},
        {"tuning": {"parallel": 8.0}},
    ],
)
def test_count_that_is_no_whole_number_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """The uploader would end at every save, and nothing would be stored or deleted."""
    with pytest.raises(InputError, match="checkpoint setting") as error:
        tuning = Tuning(**options.pop("tuning", {}))
        train(
            tmp_path / "runs",
            build(),
            3,
            tuning=tuning,
            **options,
        )
    assert error.value.fix == "write a whole number"
