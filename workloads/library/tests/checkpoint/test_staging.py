"""Staging memory that outlives a start."""

import os

import torch

from holdfast.checkpoint.save.staging import Staging
from holdfast.checkpoint.state import capture
from holdfast.checkpoint.state.tensors import pieces_of

BYTES = 1 << 20


def test_a_memory_that_outlives_a_start_keeps_what_it_held_when_the_state_has_grown() -> None:
    held = b"a copy that a restore may need"
    outliving = os.memfd_create("outliving")
    os.ftruncate(outliving, BYTES)
    os.pwrite(outliving, held, 4321)
    staging = Staging(os.dup(outliving))
    staging.prepare(pieces_of(capture({"t": torch.ones(2 * BYTES, dtype=torch.uint8)}), 0, 1))
    staging.close()
    assert os.fstat(outliving).st_size >= 2 * BYTES
    assert os.pread(outliving, len(held), 4321) == held
    os.close(outliving)
