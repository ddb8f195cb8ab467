"""A save without a library: a copy to shared memory, which a process on a spare core writes out.

Nothing is encoded or committed, so no library can cost the training less.
"""

import mmap
import os
import select
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import torch

WRITER = """
import mmap, os, sys
descriptor, length, path, spare = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
if spare:
    os.sched_setaffinity(0, {int(core) for core in spare.split(",")})
memory = memoryview(mmap.mmap(descriptor, length))
for _ in sys.stdin:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT)
    done = 0
    while done < length:
        done += os.write(file, memory[done : done + (64 << 20)])
    os.fsync(file)
    os.close(file)
    print(flush=True)
"""


def count_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def fresh(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Returns shared memory for a copy of the tensors; none of its pages has been touched."""
    size = count_bytes(tensors)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.float32)


def copy_all(tensors: Iterable[torch.Tensor], to: torch.Tensor) -> None:
    offset = 0
    for tensor in tensors:
        to[offset : offset + tensor.numel()].copy_(tensor.view(-1))
        offset += tensor.numel()


class BareCopy:
    name = "bare copy"

    def __init__(
        self, folder: Path, tensors: Iterable[torch.Tensor], *, training_threads: int
    ) -> None:
        self._tensors = list(tensors)
        length = count_bytes(self._tensors)
        descriptor = os.memfd_create("bare-copy")
        os.ftruncate(descriptor, length)
        memory = mmap.mmap(descriptor, length)
        self._copy = torch.frombuffer(memory, dtype=torch.float32).fill_(1)
        cores = sorted(os.sched_getaffinity(0))
        spare = ",".join(map(str, cores[training_threads:]))
        command = [
            sys.executable,
            "-c",
            WRITER,
            str(descriptor),
            str(length),
            str(folder / "bare"),
            spare,
        ]
        self._writer = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[descriptor],
            bufsize=0,
        )
        os.close(descriptor)
        self.begin(0)
        self.finish()  # the first write also pays for the start of the process

    def begin(self, number: int) -> None:
        copy_all(self._tensors, self._copy)
        assert self._writer.stdin is not None
        self._writer.stdin.write(b"\n")

    def busy(self) -> bool:
        assert self._writer.stdout is not None
        return not select.select([self._writer.stdout], [], [], 0)[0]

    def finish(self) -> None:
        assert self._writer.stdout is not None
        assert self._writer.stdout.readline(), "the writer has ended"

    def close(self) -> None:
        self._writer.kill()
        self._writer.communicate()
