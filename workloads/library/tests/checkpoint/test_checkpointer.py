"""The user's view: a loop with a Checkpointer, stopped and started again."""

import hashlib
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint import Checkpointer, PerRank, Tuning, load_tensors
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


def test_a_damaged_newest_checkpoint_is_passed_over_and_later_replaced(tmp_path: Path) -> None:
    train(tmp_path, build(), 6)
    shard = next((tmp_path / "test/step-0000000006").rglob("*.bin"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    again = build()
    ckpt = train(tmp_path, again, 6)
    assert ckpt.restored is not None and ckpt.restored.step == 3
    assert "crc32c" in ckpt.restored.skipped[0][1]
    assert load_tensors(str(tmp_path), keys=["model/"])[0] == 6


def test_another_model_shape_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    train(tmp_path, build(), 3)
    other = build(width=17)
    before = digest(other)
    with pytest.raises(InputError, match="another model"):
        train(tmp_path, other, 6)
    assert digest(other) == before


def test_a_value_that_could_run_code_is_refused_by_its_key(tmp_path: Path) -> None:
    state = build()
    state["sampler"]["hook"] = print
    with pytest.raises(InputError, match="sampler/hook"):
        train(tmp_path, state, 3)
    assert not list(tmp_path.rglob("COMMIT.json"))


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


def test_the_same_state_may_be_saved_again_under_the_same_step_after_a_fall_back(tmp_path: Path) -> None:
    train(tmp_path, build(), 6)
    commit = tmp_path / "test/step-0000000006/COMMIT.json"
    commit.write_bytes(commit.read_bytes()[:-9])
    again = build()
    ckpt = train(tmp_path, again, 6)
    assert ckpt.restored is not None and ckpt.restored.step == 3
    assert load_tensors(str(tmp_path))[0] == 6
