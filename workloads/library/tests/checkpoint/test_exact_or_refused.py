"""Habits and changes of programs that would resume with wrong bits: exact or refused."""

import itertools
import json
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from holdfast.checkpoint.format import SCHEMA, SCHEMA_2
from holdfast.checkpoint.state import capture
from holdfast.support.errors import InputError
from workloads.library.tests.checkpoint import direct


def make_trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize(
    ("kind", "take"),
    [
        ("optimizer", lambda model, optimizer: optimizer.state_dict()),
        ("optimizer", lambda model, optimizer: {"deep": [optimizer.state_dict()]}),
        ("model", lambda model, optimizer: model.state_dict()),
        (
            "scheduler",
            lambda model, optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2).state_dict(),
        ),
        ("scaler", lambda model, optimizer: torch.amp.GradScaler("cpu").state_dict()),
    ],
    ids=["optimizer", "inside containers", "model", "scheduler", "scaler"],
)
def test_snapshots_are_refused_with_the_object_as_the_fix(
    kind: str, take: Callable[..., Any]
) -> None:
    with pytest.raises(InputError, match=rf'pass the object: "entry": {kind}'):
        direct.start({"entry": take(*make_trained())})


def test_trained_parameter_outside_the_state_is_refused() -> None:
    model = nn.Linear(3, 3)
    outside = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.Adam([*model.parameters(), outside])
    with pytest.raises(InputError, match="no entry of the state holds"):
        direct.start({"model": model, "optimizer": optimizer})
    direct.start(
        {
            "model": model,
            "optimizer": optimizer,
            "outside": outside,
        }
    )


class Tied(nn.Module):
    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        if tied:
            self.head.weight = self.embedding.weight


def test_untied_weights_are_refused_by_a_tied_model(tmp_path: Path) -> None:
    direct.save(tmp_path, {"model": Tied(tied=False)})
    with pytest.raises(InputError, match=r"embedding\.weight, model/head\.weight share memory"):
        direct.resume(tmp_path, {"model": Tied(tied=True)})


def test_tied_weights_are_restored_in_place(tmp_path: Path) -> None:
    saved = Tied(tied=True)
    direct.save(tmp_path, {"model": saved})
    model = Tied(tied=True)
    direct.resume(tmp_path, {"model": model})
    assert model.head.weight is model.embedding.weight
    assert torch.equal(model.head.weight, saved.head.weight)


@pytest.mark.parametrize("agree", [True, False])
def test_overlapping_views_only_in_the_fresh_state(tmp_path: Path, *, agree: bool) -> None:
    first = torch.arange(4.0)
    second = torch.arange(2.0, 6.0) if agree else torch.zeros(4)
    direct.save(tmp_path, {"views": [first, second]})
    memory = torch.full((6,), -1.0)
    fresh = {"views": [memory[:4], memory[2:]]}
    if agree:
        direct.resume(tmp_path, fresh)
        assert memory.tolist() == [0, 1, 2, 3, 4, 5]
    else:
        with pytest.raises(InputError, match="share memory"):
            direct.resume(tmp_path, fresh)


class PositionOnIteration:
    """A loader whose state_dict() begins the iteration, as those of torchdata.nodes do."""

    def __init__(self) -> None:
        self.position = 0
        self._begun = False
        self._loaded: int | None = None

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self.position = self._loaded or 0

    def __iter__(self) -> Iterator[int]:
        self._begin()
        while True:
            self.position += 1
            yield self.position - 1

    def state_dict(self) -> dict[str, Any]:
        self._begin()
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = state["position"]


def test_loader_is_not_asked_for_its_state_before_it_is_loaded(tmp_path: Path) -> None:
    loader = PositionOnIteration()
    batches = iter(loader)
    assert list(itertools.islice(batches, 3)) == [0, 1, 2]
    direct.save(tmp_path, {"data": loader})
    loader = PositionOnIteration()
    direct.resume(tmp_path, {"data": loader})
    assert next(iter(loader)) == 3


class Mode(Enum):
    FAST = 1


class Scaled(torch.Tensor):
    """A tensor of integers with a scale, as quantized weights and moments are."""

    codes: torch.Tensor
    scale: torch.Tensor
    mode: Mode

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor, mode: Mode) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor, mode: Mode) -> None:
        self.codes = codes
        self.scale = scale
        self.mode = mode

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["codes", "scale"], {"mode": self.mode, "dtype": torch.int8}

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, settings: Any, size: Any, stride: Any) -> Any:
        del size, stride
        assert settings["dtype"] is torch.int8
        return cls(parts["codes"], parts["scale"], settings["mode"])

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        del types
        name = func.overloadpacket.__name__
        if name in ("detach", "clone", "_to_copy"):
            tensor = args[0]
            parts = [func(tensor.codes, *args[1:]), func(tensor.scale, *args[1:])]
            if name == "_to_copy":
                parts = [tensor.codes, tensor.scale]
            return cls(*parts, tensor.mode)
        raise NotImplementedError(f"{func} {kwargs}")


def make_scaled(value: int) -> Scaled:
    codes = torch.full((2, 3), value, dtype=torch.int8)
    return Scaled(codes, torch.full((3,), value / 10), Mode.FAST)


class QuantizedSGD(torch.optim.SGD):
    """An optimizer whose moments exist after the first step, as wrapped tensors."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {"moment": make_scaled(7)}


def test_wrapped_moments_are_built_again(tmp_path: Path) -> None:
    model = nn.Linear(3, 2, bias=False)
    optimizer = QuantizedSGD(model.parameters(), lr=0.1)
    optimizer.step()
    direct.save(tmp_path, {"model": model, "optimizer": optimizer})
    model = nn.Linear(3, 2, bias=False)
    optimizer = QuantizedSGD(model.parameters(), lr=0.1)
    direct.resume(tmp_path, {"model": model, "optimizer": optimizer})
    moment = optimizer.state[model.weight]["moment"]
    assert type(moment) is Scaled
    assert moment.codes.unique().tolist() == [7]
    assert moment.mode is Mode.FAST


def test_wrapped_weights_are_filled_in_place(tmp_path: Path) -> None:
    direct.save(tmp_path, {"entry": {"weight": TwoTensor(torch.ones(2), torch.zeros(2))}})
    fresh = TwoTensor(torch.zeros(2), torch.ones(2))
    entry = {"weight": fresh}
    direct.resume(tmp_path, {"entry": entry})
    assert entry["weight"].a.tolist() == [1, 1]
    assert entry["weight"].b.tolist() == [0, 0]
    with pytest.raises(InputError, match="written by another model"):
        direct.resume(tmp_path, {"entry": [torch.ones(2)]})


def test_type_that_cannot_be_built_again_is_refused_at_the_start() -> None:
    class Local(TwoTensor):
        pass

    Local.__tensor_unflatten__ = None  # pyright: ignore[reportAttributeAccessIssue]
    direct.start({"entry": {"of": Local(torch.ones(2), torch.ones(2))}})
    with pytest.raises(InputError, match="has not imported") as error:
        from holdfast.checkpoint.state.wrapped_tensors import unflatten

        unflatten("quantizer.tensors.Missing", {}, [], torch.Size([1]), torch.Size([1]))
    assert "import quantizer.tensors" in error.value.fix


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        (np.array(1.0), "from_numpy"),
        (10**5000, "hex"),
        (1j, "value.real"),
        (torch.device("cpu"), "torch.device"),
    ],
    ids=["array of no axes", "int of 5000 digits", "complex", "device"],
)
def test_value_is_refused_with_a_fix(value: Any, fix: str) -> None:
    with pytest.raises(InputError, match=r"cannot be stored|neither stored") as error:
        direct.start({"entry": {"of": value}})
    assert fix in error.value.fix


def test_long_key_is_refused_with_a_fix() -> None:
    with pytest.raises(InputError, match="at most 4096") as error:
        direct.start({"entry": {"k" * 5000: torch.ones(1)}})
    assert "shorter keys" in error.value.fix


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_quantized_tensor_is_refused_with_a_fix() -> None:
    for make in (
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.quint8),
        lambda: torch.zeros(4, dtype=torch.uint8).view(torch.quint8),
        lambda: torch.empty(4, dtype=torch.quint8),
    ):
        with pytest.raises(InputError, match="plain memory"):
            direct.start({"entry": {"of": make()}})


@pytest.mark.parametrize(
    ("saved", "fresh"),
    [
        (OrderedDict(a=1), {"a": 0}),
        (defaultdict(int, a=1), {}),
        (defaultdict(int, a=1), defaultdict(list)),
        ({"a": 1}, [1]),
        ([1], {"a": 1}),
    ],
    ids=repr,
)
def test_another_container_is_exact_or_refused(tmp_path: Path, saved: Any, fresh: Any) -> None:
    direct.save(tmp_path / "inside", {"entry": {"of": saved}})
    entry = {"of": fresh}
    direct.resume(tmp_path / "inside", {"entry": entry})
    assert type(entry["of"]) is type(saved)
    assert repr(entry["of"]) == repr(saved)
    direct.save(tmp_path / "itself", {"entry": saved})
    with pytest.raises(InputError, match=r"entry: a .* here"):
        direct.resume(tmp_path / "itself", {"entry": fresh})


@pytest.mark.parametrize("compiled", ["saved", "restored", "inner"])
def test_compiled_and_plain_modules_are_one_model(tmp_path: Path, compiled: str) -> None:
    saved = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    fresh = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    states: dict[str, Any] = {"saved": saved, "restored": fresh}
    if compiled in states:
        states[compiled] = torch.compile(states[compiled])
    else:
        fresh[0] = torch.compile(fresh[0])  # pyright: ignore[reportArgumentType]
    direct.save(tmp_path, {"model": states["saved"]})
    direct.resume(tmp_path, {"model": states["restored"]})
    plain = fresh[0]._orig_mod if compiled == "inner" else fresh[0]  # pyright: ignore
    assert torch.equal(plain.weight, saved[0].weight)  # pyright: ignore


def test_old_checkpoint_with_a_compiled_prefix_is_restored(tmp_path: Path) -> None:
    """Checkpoints of version 1 had the keys as the module gave them."""

    class WithPrefix(nn.Linear):
        def state_dict(self, *args: Any, **options: Any) -> Any:
            tensors = super().state_dict(*args, **options)
            prefixed = {}
            for name, tensor in tensors.items():
                prefixed[f"_orig_mod.{name}x"[:-1]] = tensor
            return prefixed

    saved = WithPrefix(3, 3)
    captured = capture({"entry": saved.state_dict()})
    assert "entry/_orig_mod.weight" in captured.tensors
    direct.save(tmp_path, {"model": {**saved.state_dict()}})
    fresh = nn.Linear(3, 3)
    direct.resume(tmp_path, {"model": fresh})
    assert torch.equal(fresh.weight, saved.weight)


class Silent(nn.Linear):
    """A module that does not load its extra state."""

    def __init__(self, count: int) -> None:
        super().__init__(2, 2)
        self.count = count

    def get_extra_state(self) -> Any:
        return {"count": self.count}

    def set_extra_state(self, state: Any) -> None: ...


def test_module_that_ignores_a_value_is_refused(tmp_path: Path) -> None:
    direct.save(tmp_path, {"model": Silent(3)})
    with pytest.raises(InputError, match="_extra_state"):
        direct.resume(tmp_path, {"model": Silent(0)})


@pytest.mark.parametrize(
    ("value", "schema"), [(1, SCHEMA), ('"$dtype":', SCHEMA), (torch.float16, SCHEMA_2)]
)
def test_manifest_has_the_oldest_version_that_can_read_it(
    tmp_path: Path,
    value: Any,
    schema: str,
) -> None:
    direct.save(tmp_path, {"entry": {"of": value}})
    (path,) = tmp_path.rglob("rank-00000.json")
    assert json.loads(path.read_bytes())["schema"] == schema
    entry = {"of": None}
    direct.resume(tmp_path, {"entry": entry})
    assert entry["of"] == value
