"""The user's view: a loop with a Checkpointer, stopped and started again."""

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint import Checkpointer, PerRank, Tuning, load_tensors
from holdfast.checkpoint.format.soundness import MAX_DEPTH
from holdfast.contract.errors import InputError
from tests.support import commits

pytestmark = pytest.mark.process


def build(width: int = 16) -> dict[str, Any]:
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return {"model": model, "optimizer": optimizer, "sampler": {"at": 0, "order": (3, 1, float("inf"))}}


def train(url: Path, state: dict[str, Any], steps: int, **options: Any) -> Checkpointer:
    torch.manual_seed(7 if not url.exists() else 8)  # 8: restore must overrule it
    with Checkpointer(str(url), state, run="test", **{"every": 3, **options}) as ckpt:
        for step in range(ckpt.step, steps):
            state["optimizer"].zero_grad()
            state["model"](torch.randn(4, 8)).square().mean().backward()
            state["optimizer"].step()
            state["sampler"]["at"] = step + 1
            ckpt.tick(step + 1)
    return ckpt


def digest(state: dict[str, Any]) -> str:
    found = hashlib.sha256()
    moments = [t for s in state["optimizer"].state_dict()["state"].values() for t in s.values()]
    for tensor in [*state["model"].state_dict().values(), *moments]:
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def test_a_run_in_two_halves_ends_with_the_bits_of_a_run_in_one(tmp_path: Path) -> None:
    whole, first, second = build(), build(), build()
    train(tmp_path / "whole", whole, 11)
    train(tmp_path / "halves", first, 5)
    resumed = train(tmp_path / "halves", second, 11)
    assert resumed.restored is not None and resumed.restored.step == 5
    assert digest(second) == digest(whole)
    assert second["sampler"] == whole["sampler"] == {"at": 11, "order": (3, 1, float("inf"))}


@pytest.mark.parametrize(
    ("file", "spoilt", "why"),
    [
        ("*.bin", lambda data: bytes(len(data)), "crc32c"),
        ("COMMIT.json", lambda data: data[:-9], "the commit is not whole"),
    ],
    ids=["shard", "commit"],
)
def test_a_damaged_newest_checkpoint_is_passed_over_and_later_replaced(
    tmp_path: Path, file: str, spoilt: Callable[[bytes], bytes], why: str
) -> None:
    train(tmp_path, build(), 6)
    damaged = next((tmp_path / "test/step-0000000006").rglob(file))
    damaged.write_bytes(spoilt(damaged.read_bytes()))
    ckpt = train(tmp_path, build(), 6)
    assert ckpt.restored is not None and ckpt.restored.step == 3
    assert why in ckpt.restored.skipped[0][1]
    assert load_tensors(str(tmp_path))[0] == 6


def test_another_model_or_optimizer_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    train(tmp_path, state := build(), 3)
    other = build(width=17)
    before = digest(other)
    with pytest.raises(InputError, match="another model"):
        train(tmp_path, other, 6)
    assert digest(other) == before
    state["optimizer"] = torch.optim.SGD(state["model"].parameters(), lr=0.1)
    with pytest.raises(InputError, match=r"optimizer optimizer is of another kind.*SGD, with .*saved were .*betas"):
        train(tmp_path, state, 6)


def test_load_tensors_gives_what_was_trained(tmp_path: Path) -> None:
    state = build()
    state["noise"] = PerRank(torch.arange(5))
    train(tmp_path, state, 4)
    step, tensors = load_tensors(str(tmp_path), keys=["model/", "noise"])
    assert step == 4
    assert torch.equal(tensors["noise"], torch.arange(5))
    assert all(torch.equal(tensors[f"model/{name}"], t) for name, t in state["model"].state_dict().items())


def test_an_interval_of_its_own_choice_saves_and_logs_what_the_window_allows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = build()
    tuning = Tuning(min_interval_s=0.05, max_interval_s=0.2)
    with Checkpointer(str(tmp_path), state, run="test", every="auto", window_s=15, tuning=tuning) as ckpt:
        step = 0
        while len(commits(tmp_path)) < 2 or "upload" not in capsys.readouterr().out:
            step += 1
            state["sampler"]["at"] = step
            time.sleep(0.001)
            ckpt.tick(step)
            if step % 50 == 0:
                ckpt.wait()
            assert step < 20_000
    again = build()
    with Checkpointer(str(tmp_path), again, run="test", every="auto", tuning=tuning) as ckpt:
        assert ckpt.step == step == again["sampler"]["at"]


CALLS: list[Callable[[Checkpointer], object]] = [
    lambda ckpt: ckpt.tick(9),
    lambda ckpt: ckpt.save(9),
    lambda ckpt: ckpt.poll(),
    lambda ckpt: ckpt.wait(1.0),
    lambda ckpt: ckpt.lock().__enter__(),
]


def test_a_call_outside_the_block_says_so(tmp_path: Path) -> None:
    before = Checkpointer(tmp_path, build(), run="test")
    after = train(tmp_path, build(), 3)
    assert after.durable_step == 3 and not after.busy
    for call in CALLS:
        with pytest.raises(InputError, match=r"not in use.*before its `with` block"):
            call(before)
        with pytest.raises(InputError, match=r"not in use.*after its `with` block"):
            call(after)
    with pytest.raises(InputError, match=r"not in use.*before its `with` block"):
        _ = before.busy


def test_a_fork_saves_nothing_and_leaves_the_trainer_alone(tmp_path: Path) -> None:
    state = build()
    with Checkpointer(tmp_path, state, run="test", every=1) as ckpt:
        ckpt.tick(1)
        if not (child := os.fork()):
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


def test_a_state_that_contains_itself_is_refused(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"in": deep}
    for value in (endless, deep):
        with (
            pytest.raises(InputError, match="contains itself, or is nested too deeply"),
            Checkpointer(tmp_path, {"odd": {"value": value}}, run="test"),
        ):
            pytest.fail("it began")


def test_a_state_as_deep_as_allowed_comes_back(tmp_path: Path) -> None:
    for _ in range(2):
        deep: list[Any] = []
        for _ in range(MAX_DEPTH - 3):
            deep = [deep]
        with Checkpointer(tmp_path, {"odd": {"value": deep}}, run="test") as ckpt:
            ckpt.tick(ckpt.step + 1)
    assert ckpt.step == 2
