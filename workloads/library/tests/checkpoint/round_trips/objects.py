"""What one process may hold: each is trained, saved, built anew, restored, and trained on beside one that went on."""

import inspect
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils

STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Object:
    name: str
    build: Callable[[], dict[str, Any]]
    """Entries of a state; those that begin with `_` are not saved."""
    advance: Callable[[dict[str, Any], int], None] = lambda entries, number: None


def objects() -> Iterable[Object]:
    return itertools.chain(optimizers(), schedulers(), helpers(), dtypes(), storages())


def grown(entries: dict[str, Any], number: int) -> None:
    model, optimizer = entries["model"], entries["optimizer"]
    rows = torch.randint(0, 5, (4,), generator=torch.Generator().manual_seed(number))

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        found = model(rows).float().square().mean()
        found.backward()
        return found

    optimizer.step(loss)


def network(dtype: torch.dtype = torch.float32, *, sparse: bool = False) -> nn.Module:
    torch.manual_seed(3)
    if sparse:
        return nn.Embedding(5, 4, sparse=True)
    # Without biases: Muon takes matrices only.
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 6, bias=False), nn.Linear(6, 3, bias=False)).to(dtype)


def optimizers() -> Iterable[Object]:
    kinds = {name: kind for name, kind in vars(torch.optim).items() if inspect.isclass(kind)}
    for name in sorted(kinds):
        if issubclass(kinds[name], torch.optim.Optimizer) and kinds[name] is not torch.optim.Optimizer:
            yield optimizer(name, kinds[name])
    for name, kind, options in (
        ("AdamW, amsgrad", torch.optim.AdamW, {"amsgrad": True}),
        ("AdamW, capturable tensors as rate", torch.optim.AdamW, {"lr": torch.tensor(1e-2), "foreach": False}),
        ("AdamW, fused", torch.optim.AdamW, {"fused": True}),
        ("SGD, momentum and Nesterov", torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        ("RMSprop, centered with momentum", torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    ):
        yield optimizer(name, kind, **options)
    yield optimizer("AdamW of bfloat16 parameters", torch.optim.AdamW, dtype=torch.bfloat16)


def optimizer(name: str, kind: Any, dtype: torch.dtype = torch.float32, **options: Any) -> Object:
    def build() -> dict[str, Any]:
        model = network(dtype, sparse=kind is torch.optim.SparseAdam)
        return {"model": model, "optimizer": kind(model.parameters(), **{"lr": 1e-2} | options)}

    return Object(name=name, build=build, advance=grown)


def schedulers() -> Iterable[Object]:
    made: dict[str, Callable[[Any], Any]] = {
        "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda at: 0.9**at),
        "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda at: 0.9),
        "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
        "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 4]),
        "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=4),
        "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=5),
        "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
        "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 6),
        "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
        "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
        "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 1e-3, 1e-2, step_size_up=2),
        "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=9),
        "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
        "SequentialLR": lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [2]
        ),
        "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
            [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
        ),
        "SWALR": lambda o: swa_utils.SWALR(o, 1e-3, anneal_epochs=4),
    }
    for name, make in made.items():
        yield Object(name=name, build=lambda make=make: scheduled(make), advance=scheduled_step)


def scheduled(make: Callable[[Any], Any]) -> dict[str, Any]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    return {"model": model, "optimizer": optimizer, "scheduler": make(optimizer)}


def scheduled_step(entries: dict[str, Any], number: int) -> None:
    grown(entries, number)
    metric = (1.0,) if isinstance(entries["scheduler"], lr_scheduler.ReduceLROnPlateau) else ()
    entries["scheduler"].step(*metric)


def helpers() -> Iterable[Object]:
    yield Object(name="GradScaler", build=lambda: scaled(enabled=True), advance=scaled_step)
    yield Object(name="GradScaler, disabled", build=lambda: scaled(enabled=False), advance=scaled_step)
    yield Object(name="exponential moving average of a model", build=averaged, advance=averaged_step)
    yield Object(name="own random generator", build=lambda: {"draws": OwnGenerator()}, advance=drawn)


def scaled(*, enabled: bool) -> dict[str, Any]:
    scaler = torch.amp.GradScaler("cpu", enabled=enabled, init_scale=1024.0, growth_interval=2)
    return optimizer("", torch.optim.AdamW).build() | {"scaler": scaler}


def scaled_step(entries: dict[str, Any], number: int) -> None:
    model, scaler = entries["model"], entries["scaler"]
    entries["optimizer"].zero_grad()
    loss = model(torch.tensor([number % 5])).square().mean()
    # An overflow, which is skipped and halves the scale: so the scale is not what it was built with.
    scaler.scale(loss * (float("inf") if number == 1 and scaler.is_enabled() else 1.0)).backward()
    scaler.step(entries["optimizer"])
    scaler.update()


def averaged() -> dict[str, Any]:
    entries = optimizer("", torch.optim.AdamW).build()
    mean = swa_utils.AveragedModel(entries["model"], multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    return entries | {"mean": mean}


def averaged_step(entries: dict[str, Any], number: int) -> None:
    grown(entries, number)
    entries["mean"].update_parameters(entries["model"])


class OwnGenerator:
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(5)
        self.drawn = torch.zeros(3)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"generator": self.generator.get_state(), "drawn": self.drawn.clone()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.generator.set_state(state["generator"])
        self.drawn.copy_(state["drawn"])


def drawn(entries: dict[str, Any], number: int) -> None:
    draws = entries["draws"]
    draws.drawn = torch.rand(3, generator=draws.generator)


def dtypes() -> Iterable[Object]:
    kinds = sorted({str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}.items())
    for name, kind in kinds:
        yield Object(name=name.removeprefix("torch."), build=lambda kind=kind: bits_of(kind), advance=other_bits)


def bits_of(kind: torch.dtype) -> dict[str, Any]:
    if kind in (torch.qint8, torch.quint8, torch.qint32):
        return {"entry": {"tensor": torch.quantize_per_tensor(torch.arange(4.0), 0.5, 0, kind)}}
    whole = torch.zeros(64, dtype=torch.uint8)
    return {"entry": {"tensor": (whole.bool() if kind is torch.bool else whole.view(kind))}}


def other_bits(entries: dict[str, Any], number: int) -> None:
    tensor = entries["entry"]["tensor"]
    # Every bit pattern, and so every NaN; a bool has two.
    ceiling = 2 if tensor.dtype is torch.bool else 256
    found = torch.randint(0, ceiling, (64,), generator=torch.Generator().manual_seed(number), dtype=torch.uint8)
    tensor.view(torch.uint8).copy_(found)


def storages() -> Iterable[Object]:
    def of(name: str, make: Callable[[], Any]) -> Object:
        return Object(name=name, build=lambda: {"entry": {"tensors": make()}}, advance=counted_up)

    yield Object(name="parameter that two modules tie", build=tied, advance=grown)
    yield of("views of one storage that do not overlap", lambda: [*torch.zeros(6).split(3)])
    yield of("views of one storage that overlap", lambda: (lambda base: [base[:4], base[2:]])(torch.zeros(6)))
    yield of("one tensor twice", lambda: [torch.zeros(3)] * 2)
    yield of("transposed", lambda: [torch.zeros(2, 3).T])
    yield of("every second element", lambda: [torch.zeros(8)[::2]])
    yield of("channels last", lambda: [torch.zeros(1, 2, 3, 4).to(memory_format=torch.channels_last)])
    yield of("a scalar", lambda: [torch.tensor(0.0)])
    yield of("no elements", lambda: [torch.zeros(0, 3)])


def tied() -> dict[str, Any]:
    torch.manual_seed(3)
    embedding, head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, head)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2)}


def counted_up(entries: dict[str, Any], number: int) -> None:
    for at, tensor in enumerate(entries["entry"]["tensors"]):
        tensor.add_(number + at)
