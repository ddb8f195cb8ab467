"""Objects that one process may have in its state.

Each is built, changed step by step, saved, built again, restored and changed further.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils

Entries = dict[str, Any]
Step = Callable[[Entries, int], None]
"""Changes the entries of an object in the step of a number."""
Object = tuple[Callable[[], Entries], Step]
"""A function that builds the entries of an object, and its step."""


def objects() -> dict[str, Object]:
    return optimizers() | schedulers() | helpers() | dtypes() | storages()


def train(entries: Entries, number: int) -> None:
    model = entries["model"]
    optimizer = entries["optimizer"]
    rows = torch.randint(
        0,
        5,
        (4,),
        generator=torch.Generator().manual_seed(number),
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = model(rows).float().square().mean()
        value.backward()
        return value

    optimizer.step(loss)


def network(dtype: torch.dtype = torch.float32, *, sparse: bool = False) -> nn.Module:
    torch.manual_seed(3)
    if sparse:
        return nn.Embedding(5, 4, sparse=True)
    # Without biases: Muon takes matrices only.
    model = nn.Sequential(
        nn.Embedding(5, 4),
        nn.Linear(4, 6, bias=False),
        nn.Linear(6, 3, bias=False),
    )
    return model.to(dtype)


def optimizers() -> dict[str, Object]:
    kinds = {}
    for name, kind in vars(torch.optim).items():
        if not inspect.isclass(kind) or kind is torch.optim.Optimizer:
            continue
        if issubclass(kind, torch.optim.Optimizer):
            kinds[name] = optimizer(kind)
    return kinds | {
        "AdamW, amsgrad": optimizer(torch.optim.AdamW, amsgrad=True),
        "AdamW, a tensor as rate": optimizer(
            torch.optim.AdamW, lr=torch.tensor(1e-2), foreach=False
        ),
        "AdamW, fused": optimizer(torch.optim.AdamW, fused=True),
        "AdamW of bfloat16 parameters": optimizer(torch.optim.AdamW, torch.bfloat16),
        "SGD, momentum and Nesterov": optimizer(torch.optim.SGD, momentum=0.9, nesterov=True),
        "RMSprop, centered with momentum": optimizer(
            torch.optim.RMSprop, centered=True, momentum=0.9
        ),
    }


def optimizer(kind: Any, dtype: torch.dtype = torch.float32, **options: Any) -> Object:
    def build() -> Entries:
        model = network(dtype, sparse=kind is torch.optim.SparseAdam)
        return {
            "model": model,
            "optimizer": kind(model.parameters(), **{"lr": 1e-2} | options),
        }

    return build, train


def schedulers() -> dict[str, Object]:
    constructors: dict[str, Callable[[Any], Any]] = {
        "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
        "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
        "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
        "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 4]),
        "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=4),
        "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=5),
        "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
        "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 6),
        "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
        "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
        "CyclicLR": lambda o: lr_scheduler.CyclicLR(
            o,
            1e-3,
            1e-2,
            step_size_up=2,
        ),
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
    schedules: dict[str, Object] = {}
    for name, make in constructors.items():
        schedules[name] = (partial(with_scheduler, make), step_scheduler)
    return schedules


def with_scheduler(make: Callable[[Any], Any]) -> Entries:
    entries = optimizer(torch.optim.SGD, momentum=0.9)[0]()
    return entries | {"scheduler": make(entries["optimizer"])}


def step_scheduler(entries: Entries, number: int) -> None:
    train(entries, number)
    scheduler = entries["scheduler"]
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        scheduler.step(1.0)
    else:
        scheduler.step()


def helpers() -> dict[str, Object]:
    return {
        "GradScaler": (lambda: with_scaler(enabled=True), step_scaler),
        "GradScaler, disabled": (lambda: with_scaler(enabled=False), step_scaler),
        "exponential moving average of a model": (with_average, step_average),
    }


def with_scaler(*, enabled: bool) -> Entries:
    scaler = torch.amp.GradScaler(
        "cpu",
        enabled=enabled,
        init_scale=1024.0,
        growth_interval=2,
    )
    return optimizer(torch.optim.AdamW)[0]() | {"scaler": scaler}


def step_scaler(entries: Entries, number: int) -> None:
    model = entries["model"]
    scaler = entries["scaler"]
    entries["optimizer"].zero_grad()
    loss = model(torch.tensor([number % 5])).square().mean()
    # An overflow is skipped and halves the scale, so that it differs from its initial value.
    if number == 1 and scaler.is_enabled():
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    scaler.step(entries["optimizer"])
    scaler.update()


def with_average() -> Entries:
    entries = optimizer(torch.optim.AdamW)[0]()
    average = swa_utils.get_ema_multi_avg_fn(0.9)
    mean = swa_utils.AveragedModel(entries["model"], multi_avg_fn=average)
    return entries | {"mean": mean}


def step_average(entries: Entries, number: int) -> None:
    train(entries, number)
    entries["mean"].update_parameters(entries["model"])


def dtypes() -> dict[str, Object]:
    kinds: dict[str, Object] = {}
    for kind in vars(torch).values():
        if isinstance(kind, torch.dtype):
            name = str(kind).removeprefix("torch.")
            kinds[name] = (partial(with_dtype, kind), randomize_bits)
    return kinds


def with_dtype(kind: torch.dtype) -> Entries:
    data = torch.zeros(64, dtype=torch.uint8)
    if kind in (torch.qint8, torch.quint8, torch.qint32):
        tensor = torch.quantize_per_tensor(
            torch.arange(4.0),
            0.5,
            0,
            kind,
        )
    elif kind is torch.bool:
        tensor = data.bool()
    else:
        tensor = data.view(kind)
    return {"entry": {"tensor": tensor}}


def randomize_bits(entries: Entries, number: int) -> None:
    tensor = entries["entry"]["tensor"]
    # All bit patterns, so all kinds of NaN; a bool has two.
    ceiling = 2 if tensor.dtype is torch.bool else 256
    data = torch.randint(
        0,
        ceiling,
        (64,),
        generator=torch.Generator().manual_seed(number),
        dtype=torch.uint8,
    )
    tensor.view(torch.uint8).copy_(data)


def storages() -> dict[str, Object]:
    constructors: dict[str, Callable[[], Any]] = {
        "views of one storage that do not overlap": lambda: [*torch.zeros(6).split(3)],
        "views of one storage that overlap": overlapping_views,
        "one tensor twice": lambda: [torch.zeros(3)] * 2,
        "every second element": lambda: [torch.zeros(8)[::2]],
        "channels last": lambda: [
            torch.zeros(
                1,
                2,
                3,
                4,
            ).to(memory_format=torch.channels_last)
        ],
        "a scalar": lambda: [torch.tensor(0.0)],
        "no elements": lambda: [torch.zeros(0, 3)],
    }
    tensors: dict[str, Object] = {"parameter that two modules tie": (with_tied_weights, train)}
    for name, make in constructors.items():
        tensors[name] = (partial(with_tensors, make), count_up)
    return tensors


def overlapping_views() -> list[torch.Tensor]:
    base = torch.zeros(6)
    return [base[:4], base[2:]]


def with_tensors(make: Callable[[], Any]) -> Entries:
    return {"entry": {"tensors": make()}}


def with_tied_weights() -> Entries:
    torch.manual_seed(3)
    embedding = nn.Embedding(5, 4)
    head = nn.Linear(4, 5, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, head)
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
    }


def count_up(entries: Entries, number: int) -> None:
    for index, tensor in enumerate(entries["entry"]["tensors"]):
        tensor.add_(number + index)
