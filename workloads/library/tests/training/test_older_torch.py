"""The launcher and gangs refuse by name a PyTorch that is new enough for checkpoints only."""

import pytest
import torch

from holdfast.support.errors import InputError
from holdfast.training import tcp_gate
from holdfast.training.tcp_gate import OLDEST_TORCH
from holdfast.training.trainer.config import TrainConfig
from holdfast.training.trainer.rendezvous import rendezvous_handler


def is_too_old() -> bool:
    major, minor, *_ = torch.__version__.split(".")
    return (int(major), int(minor)) < OLDEST_TORCH


def test_launcher_names_the_oldest_torch_for_gangs(monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_too_old():
        monkeypatch.setattr(tcp_gate.torch, "__version__", "2.7.1+cu126")
    with pytest.raises(InputError, match="too old for gangs") as error:
        rendezvous_handler(TrainConfig(checkpoints="unused"))
    assert error.value.got.startswith("2.7.")
    assert "2.8 or newer" in error.value.allowed
    with pytest.raises(InputError, match="too old for gangs"):
        tcp_gate.connect_store(1, tcp_gate.timedelta(seconds=1))
