"""Weights without the rest: for fine-tuning another model, in another dtype, and for serving."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.checkpoint import Checkpointer, load_tensors
from holdfast.contract.errors import InputError

pytestmark = pytest.mark.process


def network(classes: int = 3) -> nn.Module:
    return nn.ModuleDict({"body": nn.Linear(4, 8), "head": nn.Linear(8, classes)})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, torch.Tensor]]:
    """URL of a run with steps 1 and 2, and what the model held after step 2."""
    url = str(tmp_path_factory.mktemp("trained"))
    torch.manual_seed(3)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with Checkpointer(url, {"model": model, "optimizer": optimizer}, run="pretrain", every=1) as ckpt:
        for step in range(2):
            model["head"](model["body"](torch.randn(2, 4))).sum().backward()
            optimizer.step()
            ckpt.tick(step + 1)
            assert ckpt.wait()
    return url, {key: value.clone() for key, value in model.state_dict().items()}


def test_weights_alone_start_a_run_of_ones_own_which_later_resumes_what_is_its_own(
    trained: tuple[str, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    url, weights = trained
    for began, grown in ((0, 1.0), (1, 2.0)):
        model = network()
        stream = torch.get_rng_state()
        assert Checkpointer.load(url, {"model": model}, run="pretrain").step == 2
        assert torch.equal(torch.get_rng_state(), stream)
        assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
        with Checkpointer(str(tmp_path), {"model": model}, run="tune") as ckpt:
            assert ckpt.step == began
            with torch.no_grad():
                model["body"].bias += 1
            ckpt.tick(began + 1)
        assert torch.equal(model["body"].bias, weights["body.bias"] + grown)


class Copies(nn.Linear):
    """As a module with a state-dict hook: what it hands out is not its memory."""

    def state_dict(self, *args: Any, **more: Any) -> dict[str, Any]:
        return {key: value.clone() for key, value in super().state_dict(*args, **more).items()}


@pytest.mark.parametrize("make", [nn.Linear, Copies])
def test_a_model_of_another_dtype_and_another_head_takes_what_fits(tmp_path: Path, make: type[nn.Linear]) -> None:
    torch.manual_seed(3)
    saved = nn.ModuleDict({"body": nn.Linear(4, 8), "head": nn.Linear(8, 3)})
    with Checkpointer(str(tmp_path), {"model": saved}, run="r") as ckpt:
        ckpt.tick(1)
    other = nn.ModuleDict({"body": make(4, 8), "head": make(8, 5), "extra": nn.Linear(1, 1)}).to(torch.bfloat16)
    before = {key: value.clone() for key, value in other.state_dict().items()}
    for options in ({}, {"cast": True}, {"partial": True}):
        with pytest.raises(InputError, match="another model"):
            Checkpointer.load(str(tmp_path), {"model": other}, **options)
    found = Checkpointer.load(str(tmp_path), {"model": other}, cast=True, partial=True)
    assert sorted(found.unfilled) == ["model/extra.bias", "model/extra.weight", "model/head.bias", "model/head.weight"]
    assert torch.equal(other["body"].weight, saved["body"].weight.to(torch.bfloat16))
    left = [key for key in before if not key.startswith("body")]
    assert all(torch.equal(other.state_dict()[key], before[key]) for key in left)


def test_a_checkpoint_of_which_nothing_fits_is_another_model(trained: tuple[str, dict[str, torch.Tensor]]) -> None:
    other = nn.ModuleDict({"trunk": nn.Linear(4, 8)})
    with pytest.raises(InputError, match="another model") as refused:
        Checkpointer.load(trained[0], {"model": other}, partial=True)
    assert "no tensor of model" in str(refused.value)


class Holds(nn.Module):
    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("values", values)
        self.values: torch.Tensor


@pytest.mark.parametrize(
    ("saved", "wanted"),
    [
        (torch.tensor([1 + 2j]), torch.float32),
        (torch.tensor([0.5]), torch.int64),
        (torch.tensor([300]), torch.int8),
        (torch.tensor([-1]), torch.uint8),
        (torch.tensor([2]), torch.bool),
    ],
    ids=lambda value: str(value),
)
def test_a_cast_that_would_drop_or_wrap_values_is_refused(
    tmp_path: Path, saved: torch.Tensor, wanted: torch.dtype
) -> None:
    with Checkpointer(str(tmp_path), {"model": Holds(saved)}, run="r") as ckpt:
        ckpt.tick(1)
    with pytest.raises(InputError, match="another model"):
        Checkpointer.load(str(tmp_path), {"model": Holds(torch.zeros(1, dtype=wanted))}, cast=True)


def test_a_cast_that_overflows_says_how_many_values_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Checkpointer(str(tmp_path), {"model": Holds(torch.tensor([1.0, 1e6, -1e9]))}, run="r") as ckpt:
        ckpt.tick(1)
    into = Holds(torch.zeros(3, dtype=torch.float16))
    Checkpointer.load(str(tmp_path), {"model": into}, cast=True)
    assert into.values[0] == 1.0
    assert "2 of 3 values of model/values are not finite as float16" in capsys.readouterr().out


@pytest.mark.parametrize("saved", [torch.tensor([1, 2]), torch.tensor([True, False])], ids=["int64", "bool"])
@pytest.mark.parametrize("wanted", [torch.float16, torch.complex64], ids=str)
def test_whole_numbers_become_floats(tmp_path: Path, saved: torch.Tensor, wanted: torch.dtype) -> None:
    with Checkpointer(str(tmp_path), {"model": Holds(saved)}, run="r") as ckpt:
        ckpt.tick(1)
    into = Holds(torch.zeros(2, dtype=wanted))
    Checkpointer.load(str(tmp_path), {"model": into}, cast=True)
    assert torch.equal(into.values, saved.to(wanted))


def test_a_metric_that_ranks_nothing_ends_no_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = network()
    with Checkpointer(str(tmp_path), {"model": model}, run="r") as ckpt:
        ckpt.tick(1, metric=float("nan"))
        assert ckpt.wait()
    assert Checkpointer.load(str(tmp_path), {"model": model}).step == 1
    assert "metric of step 1 is nan" in capsys.readouterr().out


def test_one_step_and_a_dtype_are_chosen_for_serving(trained: tuple[str, dict[str, torch.Tensor]]) -> None:
    url, weights = trained
    step, tensors = load_tensors(url, keys=["model/body"], dtype=torch.float16)
    assert (step, tensors) == (2, {})
    step, tensors = load_tensors(url, keys=["model/"], dtype=torch.float16)
    assert all(torch.equal(tensors[f"model/{key}"], value.half()) for key, value in weights.items())
    assert load_tensors(url, keys=["model/"], step=1)[0] == 1
    with pytest.raises(InputError, match="no checkpoint of this step"):
        load_tensors(url, step=7)
    with pytest.raises(InputError, match="no checkpoint of this step"):
        Checkpointer.load(url, {"model": network()}, step=7)
