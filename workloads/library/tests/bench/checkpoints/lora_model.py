"""An adapter on all linear layers of a model with the shapes of Llama 3 8B.

Every frozen parameter is a mapping of the same memory, from its beginning on: 16 GB of parameters
take 1 GB, and are read from memory all the same, since that is more than a cache holds. What a
restore writes there is what is there already.
"""

import mmap
import os
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

RANK = 16
SCALE = 2.0
ROWS = 4
PATTERN_BYTES = 8192
"""The memory repeats these bytes. So shards of the base are equal, and a store keeps them once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    layers: int
    width: int

    @property
    def vocabulary(self) -> int:
        return 128_256 * self.width // 4096

    def list_linears(self) -> dict[str, tuple[int, int]]:
        """Returns rows and columns of each linear layer of a block."""
        width = self.width
        narrow = width // 4
        hidden = width * 7 // 2
        return {
            "q": (width, width),
            "k": (narrow, width),
            "v": (narrow, width),
            "o": (width, width),
            "gate": (hidden, width),
            "up": (hidden, width),
            "down": (width, hidden),
        }


class BaseMemory:
    """The memory of all frozen parameters."""

    def __init__(self, length: int) -> None:
        pages = -(-length // mmap.PAGESIZE)
        self._bytes = pages * mmap.PAGESIZE
        self._descriptor = os.memfd_create("base")
        os.ftruncate(self._descriptor, self._bytes)
        pattern = torch.randn(PATTERN_BYTES // 2, generator=torch.Generator().manual_seed(0))
        data = pattern.mul(0.02).bfloat16().view(torch.uint8).numpy().tobytes()
        with mmap.mmap(self._descriptor, self._bytes) as memory:
            for start in range(0, self._bytes, len(data)):
                part = data[: self._bytes - start]
                memory[start : start + len(part)] = part

    def make_parameter(self, *shape: int) -> nn.Parameter:
        count = torch.Size(shape).numel()
        # A mapping of its own: parameters at one address would be one parameter.
        # Populated at once, which takes half the time of four million page faults.
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        memory = mmap.mmap(self._descriptor, 2 * count, flags=flags)
        tensor = torch.frombuffer(memory, dtype=torch.bfloat16, count=count)
        return nn.Parameter(tensor.view(shape), requires_grad=False)


class AdaptedLinear(nn.Module):
    def __init__(self, base: BaseMemory, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = base.make_parameter(rows, columns)
        self.lora_a = nn.Parameter(0.01 * torch.randn(RANK, columns))
        self.lora_b = nn.Parameter(torch.zeros(rows, RANK))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        frozen = functional.linear(batch.bfloat16(), self.weight).float()
        return frozen + SCALE * (batch @ self.lora_a.T @ self.lora_b.T)


class Block(nn.Module):
    def __init__(self, base: BaseMemory, sizes: Sizes) -> None:
        super().__init__()
        self.norms = nn.ParameterList([base.make_parameter(sizes.width) for _ in range(2)])
        self.linears = nn.ModuleDict()
        for name, (rows, columns) in sizes.list_linears().items():
            self.linears[name] = AdaptedLinear(base, rows, columns)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        linears = self.linears
        key = linears["k"](batch) + linears["v"](batch)
        mixed = batch + linears["o"](linears["q"](batch) + key.repeat(1, 4))
        hidden = functional.silu(linears["gate"](mixed)) * linears["up"](mixed)
        return mixed + linears["down"](hidden)


class AdaptedModel(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        base = BaseMemory(2 * sizes.vocabulary * sizes.width)
        self.embeddings = base.make_parameter(sizes.vocabulary, sizes.width)
        self.head = base.make_parameter(sizes.vocabulary, sizes.width)
        self.norm = base.make_parameter(sizes.width)
        self.blocks = nn.ModuleList([Block(base, sizes) for _ in range(sizes.layers)])


def make_state(sizes: Sizes) -> dict[str, object]:
    """Makes a model and its optimizer, which has its moments."""
    torch.manual_seed(0)
    model = AdaptedModel(sizes)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


def train_step(state: dict[str, object], step: int) -> None:
    """Trains the adapters of one block: a step of all would take a CPU many seconds."""
    model = state["model"]
    optimizer = state["optimizer"]
    assert isinstance(model, AdaptedModel)
    assert isinstance(optimizer, torch.optim.Optimizer)
    generator = torch.Generator().manual_seed(step)
    rows = torch.randint(len(model.embeddings), (ROWS,), generator=generator)
    block = model.blocks[step % len(model.blocks)]
    optimizer.zero_grad()
    block(model.embeddings[rows].float()).square().mean().backward()
    optimizer.step()
