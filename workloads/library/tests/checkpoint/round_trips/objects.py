"""What one process may hold: each is built, changed step by step, saved, built again, restored and
changed on.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils

Entries = dict[str, Any]
Object = tuple[Callable[[], Entries], Callable[[Entries, int], None]]
"""How its entries of a state are built, and what a step of that number does to them."""


def objects() -> dict[str, Object]:
    return optimizers() | schedulers() | helpers() | dtypes() | storages()


def grown(entries: Entries, number: int) -> None:
    model = entries["model"]
    optimizer = entries["optimizer"]
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
    return nn.Sequential(
        nn.Embedding(5, 4), nn.Linear(4, 6, bias=False), nn.Linear(6, 3, bias=False)
    ).to(dtype)


def optimizers() -> dict[str, Object]:
    kinds = {}
    for name, kind in vars(torch.optim).items():
        if (
            inspect.isclass(kind)
            and issubclass(kind, torch.optim.Optimizer)
            and kind is not torch.optim.Optimizer
        ):
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

    return build, grown


def schedulers() -> dict[str, Object]:
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
    return {
        name: (lambda make=make: scheduled(make), scheduled_step) for name, make in made.items()
    }


def scheduled(make: Callable[[Any], Any]) -> Entries:
    entries = optimizer(torch.optim.SGD, momentum=0.9)[0]()
    return entries | {"scheduler": make(entries["optimizer"])}


def scheduled_step(entries: Entries, number: int) -> None:
    grown(entries, number)
    metric = (1.0,) if isinstance(entries["scheduler"], lr_scheduler.ReduceLROnPlateau) else ()
    entries["scheduler"].step(*metric)


def helpers() -> dict[str, Object]:
    return {
        "GradScaler": (lambda: scaled(enabled=True), scaled_step),
        "GradScaler, disabled": (lambda: scaled(enabled=False), scaled_step),
        "exponential moving average of a model": (averaged, averaged_step),
    }


def scaled(*, enabled: bool) -> Entries:
    scaler = torch.amp.GradScaler(
        "cpu",
        enabled=enabled,
        init_scale=1024.0,
        growth_interval=2,
    )
    return optimizer(torch.optim.AdamW)[0]() | {"scaler": scaler}


def scaled_step(entries: Entries, number: int) -> None:
    model = entries["model"]
    scaler = entries["scaler"]
    entries["optimizer"].zero_grad()
    loss = model(torch.tensor([number % 5])).square().mean()
    # An overflow, which is skipped and halves the scale: so the scale is not what it was built
    # with.
    scaler.scale(loss * (float("inf") if number == 1 and scaler.is_enabled() else 1.0)).backward()
    scaler.step(entries["optimizer"])
    scaler.update()


def averaged() -> Entries:
    entries = optimizer(torch.optim.AdamW)[0]()
    mean = swa_utils.AveragedModel(
        entries["model"], multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)
    )
    return entries | {"mean": mean}


def averaged_step(entries: Entries, number: int) -> None:
    grown(entries, number)
    entries["mean"].update_parameters(entries["model"])


def dtypes() -> dict[str, Object]:
    kinds = {
        str(kind).removeprefix("torch."): kind
        for kind in vars(torch).values()
        if isinstance(kind, torch.dtype)
    }
    return {name: (lambda kind=kind: bits_of(kind), other_bits) for name, kind in kinds.items()}


def bits_of(kind: torch.dtype) -> Entries:
    if kind in (torch.qint8, torch.quint8, torch.qint32):
        return {"entry": {"tensor": torch.quantize_per_tensor(torch.arange(4.0), 0.5, 0, kind)}}
    whole = torch.zeros(64, dtype=torch.uint8)
    return {"entry": {"tensor": (whole.bool() if kind is torch.bool else whole.view(kind))}}


def other_bits(entries: Entries, number: int) -> None:
    tensor = entries["entry"]["tensor"]
    # Every bit pattern, and so every NaN; a bool has two.
    ceiling = 2 if tensor.dtype is torch.bool else 256
    found = torch.randint(
        0,
        ceiling,
        (64,),
        generator=torch.Generator().manual_seed(number),
        dtype=torch.uint8,
    )
    tensor.view(torch.uint8).copy_(found)


def storages() -> dict[str, Object]:
    made: dict[str, Callable[[], Any]] = {
        "views of one storage that do not overlap": lambda: [*torch.zeros(6).split(3)],
        "views of one storage that overlap": lambda: (lambda base: [base[:4], base[2:]])(
            torch.zeros(6)
        ),
        "one tensor twice": lambda: [torch.zeros(3)] * 2,
        "every second element": lambda: [torch.zeros(8)[::2]],
        "channels last": lambda: [torch.zeros(1, 2, 3, 4).to(memory_format=torch.channels_last)],
        "a scalar": lambda: [torch.tensor(0.0)],
        "no elements": lambda: [torch.zeros(0, 3)],
    }
    found: dict[str, Object] = {
        name: (lambda make=make: {"entry": {"tensors": make()}}, counted_up)
        for name, make in made.items()
    }
    return found | {"parameter that two modules tie": (tied, grown)}


def tied() -> Entries:
    torch.manual_seed(3)
    embedding = nn.Embedding(5, 4)
    head = nn.Linear(4, 5, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, head)
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
    }


def counted_up(entries: Entries, number: int) -> None:
    for at, tensor in enumerate(entries["entry"]["tensors"]):
        tensor.add_(number + at)
