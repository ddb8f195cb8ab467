"""The schedule of copies: by what every rank has, and by what they cost."""

import os
from typing import cast

import pytest
import torch

from holdfast.checkpoint.peers.keeper_client import PeerPlaces
from holdfast.checkpoint.reports import Reports
from holdfast.checkpoint.restore import Restored
from holdfast.checkpoint.save.copies import Copies
from holdfast.checkpoint.save.staging import Staging
from holdfast.checkpoint.save.uploader import Report
from holdfast.checkpoint.save.writer import CheckpointWriter
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.state import capture
from holdfast.checkpoint.state.tensors import make_pieces
from workloads.library.tests.checkpoint.made import alone

PLACES = PeerPlaces(
    run="job",
    epoch=1,
    place=0,
    keepers=(("", 1), ("", 2)),
    ranks_per_node=1,
    memories=(0, 1, 2),
)
"""No copy is handed over, so no keeper is asked."""


def make_copies(**settings: int) -> Copies:
    return Copies(
        PLACES,
        Tuning(**settings),
        Restored(
            step=4,
            skipped=[],
            damaged={},
        ),
        0,
    )


def test_a_copy_that_failed_is_tried_more_rarely() -> None:
    """copies_model.py checks which copy stays meanwhile."""
    copies = make_copies(peer_steps=3)
    assert copies.due(5)
    assert copies.agree(alone(), 5, 1.0)
    copies.record_staging(
        (5, "a"),
        0,
        1,
        0.1,
    )
    copies.record_outcome(Report(save=1, done="uncopied", reason="no room"))
    assert copies.agree(alone(), 8, 1.0)
    assert not copies.due(13)
    assert copies.due(14)


def test_copies_take_less_than_two_percent_step_time() -> None:
    copies = make_copies()
    for save, step in enumerate((5, 6), start=1):
        assert copies.agree(alone(), step, 0.5)
        copies.record_staging(
            (step, "a"),
            0,
            save,
            0.1 if save == 2 else 60.0,
        )
        copies.record_outcome(Report(save=save, done="copied"))
    copies.agree(alone(), 7, 0.5)
    assert not copies.due(23), "0.1 s in 17 steps of 0.5 s, of which 1.2 % are 0.102 s"
    assert copies.due(24), "0.1 s in 17 steps of 0.5 s, of which 1.2 % are 0.102 s"


def test_copies_take_at_most_two_percent_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    copies = make_copies()
    assert copies.agree(alone(), 5, 0.5)
    copies.record_staging(
        (5, "a"),
        0,
        1,
        0.0,
    )
    copies.record_outcome(Report(save=1, done="copied", processor_s=2.0))
    copies.agree(alone(), 6, 0.5)
    assert not copies.due(89), "half a second of all cores in 84 steps of 0.5 s"
    assert copies.due(90), "half a second of all cores in 84 steps of 0.5 s"


def test_a_memory_that_has_to_grow_keeps_its_content() -> None:
    size = 1 << 20
    content = b"a copy that a restore may need"
    memory = os.memfd_create("outliving")
    os.ftruncate(memory, size)
    os.pwrite(memory, content, 4321)
    staging = Staging(os.dup(memory))
    larger_state = {"t": torch.ones(2 * size, dtype=torch.uint8)}
    staging.prepare(make_pieces(capture(larger_state), 0, 1))
    staging.close()
    assert os.fstat(memory).st_size >= 2 * size
    assert os.pread(memory, len(content), 4321) == content
    os.close(memory)


class WriterAtStep:
    """The part of a writer that a report reads."""

    durable_step = 0
    durable_since = 0.0
    busy = False

    def __init__(self, copies: Copies) -> None:
        self._copies = copies

    @property
    def copied_step(self) -> int:
        return self._copies.copied_step


def report_loss(copies: Copies, step: int, caplog: pytest.LogCaptureFixture) -> str:
    writer = cast(CheckpointWriter, WriterAtStep(copies))
    Reports(None, "job").report_loss(writer, step, "Connection closed by peer")
    return caplog.messages[-1]


def test_steps_in_node_memory_are_not_reported_as_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    copies = make_copies()
    without_a_copy = report_loss(copies, 52, caplog)
    assert "leaving at step 52, the newest checkpoint is of step 0: 52 steps (" in without_a_copy
    copies.record_staging((52, "a"), 0, 1, 0.1)
    assert "52 steps (" in report_loss(copies, 52, caplog)
    assert copies.copied_step == -1, "the copy is still on its way"
    copies.record_outcome(Report(save=1, done="copied"))
    text = report_loss(copies, 52, caplog)
    assert "leaving at step 52, the memory of nodes holds step 52: 0 steps are lost;" in text
    assert "without it the newest" in text
    assert "Connection closed by peer" in text
    copies.record_staging((53, "a"), 1, 2, 0.1)
    copies.record_outcome(Report(save=2, done="uncopied", reason="no room"))
    assert "52 steps" in report_loss(copies, 52, caplog), (
        "the version before was not known to be whole on every rank"
    )
