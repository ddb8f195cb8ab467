"""The corpus as one tensor of bytes, and an order of samples that needs no state but a counter.

The sample at position n of a run is a pure function of (seed, n): any number of ranks that shares
out positions 0, 1, 2, ... sees each sample once per epoch, and a resumed run continues with
position `consumed`.
"""

import hashlib
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from holdfast.support.errors import InputError

MAX_CORPUS_BYTES = 2 << 20
_LEFT_OUT = {"site-packages", "test", "tests", "__pycache__", "idlelib", "lib2to3", "ensurepip"}
_PROBE_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class Corpus:
    text: Tensor
    """uint8, one dimension."""
    fingerprint: str
    """Changes when a file is added, removed, renamed or edited; stored in checkpoints."""

    @classmethod
    def read(cls, folder: Path | None, *, max_bytes: int = MAX_CORPUS_BYTES) -> "Corpus":
        """The text files of `folder` in the order of their paths; None means Python's standard
        library.

        Raises InputError where there is no text.
        """
        root = folder or Path(sysconfig.get_path("stdlib"))
        is_part: Callable[[Path], bool] = _is_text if folder else lambda path: path.suffix == ".py"
        digest = hashlib.sha256()
        parts = list[bytes]()
        total = 0
        for path in filter(is_part, _walk(root) if root.is_dir() else ()):
            content = path.read_bytes()[: max_bytes - total]
            # Relative: the same data below another mount point must not look like other data to a
            # resumed run.
            digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
            parts.append(content)
            total += len(content)
            if total >= max_bytes:
                break
        if not total:
            raise InputError(
                "the data folder contains no text",
                got=root if root.is_dir() else f"{root}, which is not a folder",
                allowed=(
                    "a folder with at least one readable text file (no NUL byte in its first KiB)"
                ),
                fix="use another folder, or omit the option to train on Python's own sources",
            )
        # A bytearray: a tensor over immutable bytes could write to them, and torch warns of it.
        text = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)
        return cls(text=text, fingerprint=digest.hexdigest())


def _walk(folder: Path) -> Iterator[Path]:
    """Files in a fixed order, lazily: a bounded corpus touches few folders of a large tree."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in _LEFT_OUT:
            yield from _walk(path)
        elif path.is_file():
            yield path


def _is_text(path: Path) -> bool:
    if path.name.startswith("."):
        return False
    with path.open("rb") as file:
        head = file.read(_PROBE_BYTES)
    return bool(head) and b"\0" not in head


@dataclass(kw_only=True)
class Samples:
    """Windows of `context` + 1 bytes, dealt out by position."""

    text: Tensor
    context: int
    seed: int
    _epoch: int = field(default=-1, init=False)
    _order: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64), init=False)

    def __post_init__(self) -> None:
        if len(self) < 1:
            raise InputError(
                "the training text is shorter than one sample",
                got=f"{len(self.text)} bytes",
                allowed=f"at least {self.context + 1} bytes",
                fix="give more text or a shorter context",
            )

    def __len__(self) -> int:
        """Samples of one epoch."""
        return (len(self.text) - 1) // self.context

    def index(self, position: int) -> int:
        """Which sample is at `position` of the run; every epoch is a new permutation."""
        epoch, within = divmod(position, len(self))
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch))
            self._epoch, self._order = epoch, torch.randperm(len(self), generator=generator)
        return int(self._order[within])

    def batch(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Inputs and the bytes that follow them, for positions first .. first + count - 1."""
        starts = [self.index(first + n) * self.context for n in range(count)]
        rows = torch.stack([self.text[at : at + self.context + 1] for at in starts]).long()
        return rows[:, :-1], rows[:, 1:]


def mixed_seed(*numbers: int) -> int:
    """One seed from several numbers; neighbours share nothing."""
    digest = hashlib.blake2b(",".join(map(str, numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # manual_seed takes 63 bits


def seed_draws(seed: int, device: torch.device) -> None:
    """As torch.manual_seed, for draws on the CPU and `device` alone. That one prepares every kind
    of accelerator, and for each unused one it formats the call stack: 0.4 ms, 3 % of a small step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)
