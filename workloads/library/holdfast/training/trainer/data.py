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

from holdfast.support.errors import InputError, unusable

MAX_CORPUS_BYTES = 2 << 20
_SKIPPED_FOLDERS = {
    "site-packages",
    "test",
    "tests",
    "__pycache__",
    "idlelib",
    "lib2to3",
    "ensurepip",
}
_PROBE_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class Corpus:
    text: Tensor
    """uint8, one dimension."""
    fingerprint: str
    """Changes when a file is added, removed, renamed or edited; stored in checkpoints."""

    @classmethod
    def read(cls, folder: Path | None, *, max_bytes: int = MAX_CORPUS_BYTES) -> "Corpus":
        """Reads the text files of `folder` in the order of their paths, up to `max_bytes`.

        None stands for Python's standard library. Raises InputError if there is no text, or a file
        cannot be read.
        """
        root = folder or Path(sysconfig.get_path("stdlib"))
        try:
            return cls._read(root, _is_text if folder else _is_python, max_bytes)
        except OSError as error:
            raise unusable(error, error.filename or root) from error

    @classmethod
    def _read(cls, root: Path, is_part: Callable[[Path], bool], max_bytes: int) -> "Corpus":
        digest = hashlib.sha256()
        corpus = bytearray()
        for path in _walk(root):
            if not is_part(path):
                continue
            with path.open("rb") as file:  # which may be larger than the memory
                content = file.read(max_bytes - len(corpus))
            # Relative: the same data below another mount point must not look like other data to a
            # resumed run.
            relative_path = path.relative_to(root).as_posix()
            digest.update(f"{relative_path}\0{len(content)}\0".encode())
            digest.update(content)
            corpus += content
            if len(corpus) >= max_bytes:
                break
        if not corpus:
            raise InputError(
                "the data folder contains no text",
                got=root if root.is_dir() else f"{root}, which is not a folder",
                allowed=(
                    "a folder with at least one readable text file (no NUL byte in its first KiB)"
                ),
                fix="use another folder, or omit the option to train on Python's own sources",
            )
        # A bytearray: a tensor over immutable bytes could write to them, and torch warns of it.
        text = torch.frombuffer(corpus, dtype=torch.uint8)
        return cls(text=text, fingerprint=digest.hexdigest())


def _walk(folder: Path) -> Iterator[Path]:
    """Yields files in a fixed order, lazily: a bounded corpus touches few folders of a large tree.

    Yields nothing if `folder` is not a folder.
    """
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.is_file():
            yield path
        # A ConfigMap has its files in a hidden folder too, whose name is the time of the mount.
        elif path.name not in _SKIPPED_FOLDERS and not path.name.startswith("."):
            yield from _walk(path)


def _is_text(path: Path) -> bool:
    if path.name.startswith("."):
        return False
    with path.open("rb") as file:
        head = file.read(_PROBE_BYTES)
    if not head:
        return False
    return b"\0" not in head


def _is_python(path: Path) -> bool:
    return path.suffix == ".py"


@dataclass(kw_only=True)
class Samples:
    """Samples of `context` + 1 bytes each, addressed by their position in the run."""

    text: Tensor
    context: int
    seed: int
    _epoch: int = field(default=-1, init=False)
    _order: Tensor = field(init=False, repr=False)
    """Permutation of `_epoch`."""

    def __post_init__(self) -> None:
        if len(self) < 1:
            raise InputError(
                "the training text is shorter than one sample",
                got=f"{len(self.text)} bytes",
                allowed=f"at least {self.context + 1} bytes",
                fix="give more text or a shorter context",
            )

    def __len__(self) -> int:
        """Returns the number of samples of one epoch."""
        return (len(self.text) - 1) // self.context

    def index(self, position: int) -> int:
        """Returns the sample at `position` of the run; every epoch is a new permutation."""
        epoch, offset = divmod(position, len(self))
        if epoch != self._epoch:
            generator = torch.Generator()
            generator.manual_seed(mix_seed(self.seed, epoch))
            self._order = torch.randperm(len(self), generator=generator)
            self._epoch = epoch
        return int(self._order[offset])

    def batch(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Returns inputs and the bytes that follow them, both (count, context) int64.

        They are the samples at positions first .. first + count - 1.
        """
        rows = list[Tensor]()
        for position in range(first, first + count):
            start = self.index(position) * self.context
            end = start + self.context + 1
            rows.append(self.text[start:end])
        samples = torch.stack(rows).long()
        inputs = samples[:, :-1]
        following = samples[:, 1:]
        return inputs, following


def mix_seed(*numbers: int) -> int:
    """Returns one seed for several numbers; seeds of neighboring numbers share nothing."""
    text = ",".join(map(str, numbers))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # manual_seed takes 63 bits


def seed_draws(seed: int, device: torch.device) -> None:
    """Seeds the random draws on the CPU and on `device`, as torch.manual_seed does for all devices.

    torch.manual_seed prepares every kind of accelerator, and for each unused one it formats the
    call stack: 0.4 ms, 3 % of a small step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)
