"""Staging memory: touched before the first save, once, and never changed by that."""

import os
import resource

import torch

from holdfast.checkpoint.save.staging import Staging
from holdfast.checkpoint.state import capture
from holdfast.checkpoint.state.tensors import Piece, pieces_of

BYTES = 16 << 20
RANDOM_STREAM_BYTES = 6 << 10


def pieces(*sizes: int) -> list[Piece]:
    tensors = {str(n): torch.ones(size, dtype=torch.uint8) for n, size in enumerate(sizes)}
    return pieces_of(capture(tensors), 0, 1)


def test_the_first_save_takes_no_page_fault_though_the_program_imports_numpy_after_its_start() -> None:
    staging = Staging()
    staging.prepare(pieces(BYTES))
    while staging.touching:
        os.sched_yield()
    state = pieces(BYTES, RANDOM_STREAM_BYTES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    staging.stage(state)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    staging.close()
    assert faults < BYTES // resource.getpagesize() // 10


def test_a_memory_that_outlives_a_start_keeps_what_it_held_when_the_state_has_grown() -> None:
    held = b"a copy that a restore may need"
    outliving = os.memfd_create("outliving")
    os.ftruncate(outliving, BYTES)
    os.pwrite(outliving, held, 4321)
    staging = Staging(os.dup(outliving))
    staging.prepare(pieces(2 * BYTES))
    staging.close()
    assert os.fstat(outliving).st_size >= 2 * BYTES
    assert os.pread(outliving, len(held), 4321) == held
    os.close(outliving)
