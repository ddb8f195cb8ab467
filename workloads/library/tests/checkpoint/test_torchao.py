"""States with torchao's tensors: exact, or refused at the start with what to use."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from holdfast.checkpoint import Checkpointer, PerRank
from holdfast.checkpoint.ranks import Ranks
from holdfast.checkpoint.save.agreement import check_state
from holdfast.checkpoint.state import capture, checked_state
from holdfast.support.errors import InputError
from holdfast.training.elastic.transfer import load_state
from tests.tools import frameworks
from workloads.library.tests.checkpoint import direct
from workloads.library.tests.checkpoint.jobs import RUN, TUNING, Jobs
from workloads.library.tests.checkpoint.process_groups import run
from workloads.library.tests.locked_packages import install_packages

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

# A moment of fewer than 4,096 numbers is not quantized.
WIDTH = 64
MODULES = (
    "torchao.optim",
    "torchao.quantization",
    "torchao.prototype.quantized_training",
    "torchao.prototype.mx_formats.mx_tensor",
)
LOW_BIT = ("AdamW8bit", "AdamW4bit", "AdamWFp8")
State = dict[str, Any]
Build = Callable[[nn.Module], nn.Module]


@pytest.fixture(scope="module")
def torchao_site() -> Iterator[Path]:
    site = install_packages(frameworks.TORCHAO)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        with warnings.catch_warnings():  # of escapes in strings, while Python compiles torchao
            warnings.simplefilter("ignore")
            for name in MODULES:
                import_module(name)
        yield site


@pytest.fixture(autouse=True)
def without_compiler(torchao_site: Path) -> Iterator[None]:
    """torchao compiles each step, which takes a C++ compiler and seconds."""
    del torchao_site
    with torch.compiler.set_stance("force_eager"):
        yield


def make_model(seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
    return model.to(dtype)


def make_state(optimizer: str, seed: int, dtype: torch.dtype = torch.float32) -> State:
    from torchao import optim

    model = make_model(seed, dtype)
    return {"model": model, "optimizer": getattr(optim, optimizer)(model.parameters(), lr=1e-2)}


def train(state: State, *steps: int) -> None:
    dtype = next(state["model"].parameters()).dtype
    for step in steps:
        torch.manual_seed(step)
        state["optimizer"].zero_grad()
        inputs = torch.randn(4, WIDTH, dtype=dtype)
        state["model"](inputs).square().mean().backward()
        state["optimizer"].step()


def read_bits(state: State) -> dict[str, bytes]:
    """Returns the bytes of all tensors, those inside of others too."""
    bits: dict[str, bytes] = {}
    for key, tensor in capture(state).tensors.items():
        bits[key] = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return bits


def list_types(optimizer: torch.optim.Optimizer) -> set[str]:
    types: set[str] = set()
    for moments in optimizer.state.values():
        types.update(type(moment).__name__ for moment in moments.values())
    return types


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("optimizer", LOW_BIT)
def test_low_bit_moments_resume_exactly(tmp_path: Path, optimizer: str, dtype: torch.dtype) -> None:
    whole = make_state(optimizer, 0, dtype)
    train(whole, 0, 1)
    direct.save(tmp_path, whole)
    resumed = make_state(optimizer, 1, dtype)
    direct.resume(tmp_path, resumed)
    assert read_bits(resumed) == read_bits(whole)
    train(whole, 2, 3)
    train(resumed, 2, 3)
    assert read_bits(resumed) == read_bits(whole)
    assert len(list_types(resumed["optimizer"])) == 2, "a number of steps, and moments of few bits"


def copy_tensors(state: State) -> dict[str, torch.Tensor]:
    copies: dict[str, torch.Tensor] = {}
    for key, tensor in capture(state).tensors.items():
        copies[key] = tensor.clone()
    return copies


@pytest.mark.parametrize("optimizer", LOW_BIT)
def test_elastic_newcomer_gets_low_bit_moments(optimizer: str) -> None:
    ahead = make_state(optimizer, 0)
    train(ahead, 0, 1)
    newcomer = make_state(optimizer, 1)
    skeleton = dict(capture(ahead).skeleton)
    del skeleton["__rng__"]
    load_state(newcomer, skeleton, copy_tensors(ahead))
    train(ahead, 2)
    train(newcomer, 2)
    assert read_bits(newcomer) == read_bits(ahead)


def _to_int8(model: nn.Module) -> nn.Module:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig())
    return model.requires_grad_(requires_grad=False)


def _to_trained_int8(model: nn.Module) -> nn.Module:
    from torchao.prototype.quantized_training import int8_weight_only_quantized_training
    from torchao.quantization import quantize_

    quantize_(model, int8_weight_only_quantized_training())
    return model


def _to_mx(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    for module in model.modules():
        if isinstance(module, nn.Linear):
            weight = MXTensor.to_mx(module.weight.detach(), dtype, 32)
            module.weight = nn.Parameter(weight, requires_grad=False)
    return model


QUANTIZED: dict[str, Build] = {
    "int8": _to_int8,
    "int8 trained": _to_trained_int8,
    "mxfp8": partial(_to_mx, dtype=torch.float8_e4m3fn),
    "mxfp4": partial(_to_mx, dtype=torch.float4_e2m1fn_x2),
}


@pytest.mark.parametrize("quantize", QUANTIZED.values(), ids=QUANTIZED)
def test_quantized_weights_resume_exactly(tmp_path: Path, quantize: Build) -> None:
    saved = {"model": quantize(make_model(0))}
    direct.save(tmp_path, saved)
    resumed = {"model": quantize(make_model(1))}
    assert read_bits(resumed) != read_bits(saved)
    direct.resume(tmp_path, resumed)
    assert read_bits(resumed) == read_bits(saved)
    types = {type(parameter.data).__name__ for parameter in resumed["model"].parameters()}
    assert len(types) == 2, "quantized weights, and biases"


def test_weights_with_settings_for_activations_are_refused_with_a_fix() -> None:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    model = make_model(0).requires_grad_(requires_grad=False)
    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    with pytest.raises(InputError, match="wraps other tensors, with settings") as error:
        direct.start({"model": model})
    assert "QuantizeTensorToInt8Kwargs" in error.value.got
    assert "out of the state" in error.value.fix


@pytest.mark.parametrize(
    ("saved", "live"),
    [("AdamW8bit", "AdamW4bit"), ("AdamW4bit", "_AdamW"), ("_AdamW", "AdamW8bit")],
)
def test_other_moments_are_refused(tmp_path: Path, saved: str, live: str) -> None:
    first = make_state(saved, 0)
    train(first, 0)
    direct.save(tmp_path, first)
    with pytest.raises(InputError, match="not of the type that was saved"):
        direct.resume(tmp_path, make_state(live, 0))


def test_pytorch_optimizer_refuses_low_bit_moments(tmp_path: Path) -> None:
    first = make_state("AdamW8bit", 0)
    train(first, 0)
    direct.save(tmp_path, first)
    model = make_model(0)
    with pytest.raises(InputError, match="not of the type that was saved") as error:
        direct.resume(
            tmp_path, {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
        )
    assert "OptimState8bit" in error.value.got


def save_and_resume_replicas(world: int, url: str) -> None:
    """DDP: each rank writes a part of the moments, and reads all of them."""
    del world
    torch.compiler.set_stance("force_eager")
    states = [make_state("AdamW4bit", seed) for seed in (0, 1)]
    for state in states:
        state["model"] = nn.parallel.DistributedDataParallel(state["model"])
    whole, resumed = states
    with Checkpointer(url, whole, run=RUN, tuning=TUNING) as ckpt:
        train(whole, 0, 1)
        ckpt.save(2)
        assert ckpt.wait(60)
    with Checkpointer(url, resumed, run=RUN, tuning=TUNING) as ckpt:
        assert ckpt.step == 2
        bits = read_bits(whole)
        assert read_bits(resumed) == bits
        train(resumed, 2)
        train(whole, 2)
        assert read_bits(resumed) == read_bits(whole) != bits


def test_replicas_resume_low_bit_moments_exactly(jobs: Jobs, tmp_path: Path) -> None:
    run(jobs, tmp_path, 2, save_and_resume_replicas, str(tmp_path / "url"))


def start_on_ranks(state: State) -> None:
    check_state(checked_state(state), Ranks.of_job(timeout_s=60))


def refuse_sharded_moments(world: int) -> None:
    from torchao import optim

    model = make_model(0)
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = optim.AdamW8bit(model.parameters(), lr=1e-2)
    for entry in (optimizer, PerRank(optimizer)):
        with pytest.raises(InputError, match="no plain memory") as error:
            start_on_ranks({"model": model, "optimizer": entry})
        assert error.value.got == "a sharded OptimState8bit, which wraps other tensors"
        assert "torch.optim" in error.value.fix
    assert not optimizer.state
    plain = optim._AdamW(model.parameters(), lr=1e-2)
    start_on_ranks({"model": model, "optimizer": plain})


def test_sharded_low_bit_moments_are_refused_before_the_first_step(
    jobs: Jobs, tmp_path: Path
) -> None:
    run(jobs, tmp_path, 2, refuse_sharded_moments)
