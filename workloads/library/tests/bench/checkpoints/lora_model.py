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
        scaled = 128_256 * self.width
        return scaled // 4096

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
        last_byte = length + mmap.PAGESIZE - 1
        pages = last_byte // mmap.PAGESIZE
        self._bytes = pages * mmap.PAGESIZE
        self._descriptor = os.memfd_create("base")
        os.ftruncate(self._descriptor, self._bytes)
        self._fill()

    def _fill(self) -> None:
        data = make_pattern()
        starts = range(
            0,
            self._bytes,
            len(data),
        )
        with mmap.mmap(
            self._descriptor,
            self._bytes,
        ) as memory:
            for start in starts:
                room = self._bytes - start
                part = data[:room]
                end = start + len(part)
                memory[start:end] = part

    def make_parameter(self, *shape: int) -> nn.Parameter:
        size = torch.Size(shape)
        count = size.numel()
        # A mapping of its own: parameters at one address would be one parameter.
        # Populated at once, which takes half the time of four million page faults.
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        memory = mmap.mmap(
            self._descriptor,
            2 * count,
            flags=flags,
        )
        tensor = torch.frombuffer(
            memory,
            dtype=torch.bfloat16,
            count=count,
        )
        return nn.Parameter(
            tensor.view(shape),
            requires_grad=False,
        )


def make_pattern() -> bytes:
    generator = torch.Generator()
    generator.manual_seed(0)
    normal = torch.randn(
        PATTERN_BYTES // 2,
        generator=generator,
    )
    small = normal.mul(0.02)
    weights = small.bfloat16()
    octets = weights.view(torch.uint8)
    return octets.numpy().tobytes()


class AdaptedLinear(nn.Module):
    def __init__(
        self,
        base: BaseMemory,
        rows: int,
        columns: int,
    ) -> None:
        super().__init__()
        self.weight = base.make_parameter(rows, columns)
        normal = torch.randn(RANK, columns)
        self.lora_a = nn.Parameter(0.01 * normal)
        zeros = torch.zeros(rows, RANK)
        self.lora_b = nn.Parameter(zeros)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        narrow = batch.bfloat16()
        product = functional.linear(narrow, self.weight)
        frozen = product.float()
        inner = batch @ self.lora_a.T
        change = inner @ self.lora_b.T
        return frozen + SCALE * change


class Block(nn.Module):
    def __init__(self, base: BaseMemory, sizes: Sizes) -> None:
        super().__init__()
        self.norms = nn.ParameterList()
        for _ in range(2):
            norm = base.make_parameter(sizes.width)
            self.norms.append(norm)
        self.linears = nn.ModuleDict()
        shapes = sizes.list_linears()
        for name, (rows, columns) in shapes.items():
            linear = AdaptedLinear(
                base,
                rows,
                columns,
            )
            self.linears[name] = linear

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        linears = self.linears
        key = linears["k"](batch)
        value = linears["v"](batch)
        narrow = key + value
        wide = narrow.repeat(1, 4)
        query = linears["q"](batch)
        attention = linears["o"](query + wide)
        mixed = batch + attention
        gate = linears["gate"](mixed)
        opening = functional.silu(gate)
        hidden = opening * linears["up"](mixed)
        change = linears["down"](hidden)
        return mixed + change


class AdaptedModel(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        rows = sizes.vocabulary
        width = sizes.width
        base = BaseMemory(2 * rows * width)
        self.embeddings = base.make_parameter(rows, width)
        self.head = base.make_parameter(rows, width)
        self.norm = base.make_parameter(width)
        self.blocks = nn.ModuleList()
        for _ in range(sizes.layers):
            block = Block(base, sizes)
            self.blocks.append(block)


def make_state(sizes: Sizes) -> dict[str, object]:
    """Makes a model and its optimizer, which has its moments."""
    torch.manual_seed(0)
    model = AdaptedModel(sizes)
    trained: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
            trained.append(parameter)
    optimizer = torch.optim.AdamW(
        trained,
        lr=1e-3,
    )
    optimizer.step()
    optimizer.zero_grad()
    return {
        "model": model,
        "optimizer": optimizer,
    }


def train_step(state: dict[str, object], step: int) -> None:
    """Trains the adapters of one block: a step of all would take a CPU many seconds."""
    model = state["model"]
    optimizer = state["optimizer"]
    assert isinstance(model, AdaptedModel)
    assert isinstance(optimizer, torch.optim.Optimizer)
    generator = torch.Generator()
    generator.manual_seed(step)
    rows = torch.randint(
        len(model.embeddings),
        (ROWS,),
        generator=generator,
    )
    batch = model.embeddings[rows].float()
    place = step % len(model.blocks)
    block = model.blocks[place]
    optimizer.zero_grad()
    output = block(batch)
    squares = output.square()
    loss = squares.mean()
    loss.backward()
    optimizer.step()
