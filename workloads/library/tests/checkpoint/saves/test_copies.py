"""When a rank's copies are made and which of them is kept: by what every rank has, and by what they
cost.
"""

import os
from typing import cast

import pytest
import torch

from holdfast.checkpoint.peers.places import PeerPlaces
from holdfast.checkpoint.reports import Reports
from holdfast.checkpoint.restore import Restored
from holdfast.checkpoint.save.copies import Copies
from holdfast.checkpoint.save.staging import Staging
from holdfast.checkpoint.save.uploader import Report
from holdfast.checkpoint.save.writer import CheckpointWriter
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.state import capture
from holdfast.checkpoint.state.tensors import pieces_of
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


def copies(**settings: int) -> Copies:
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
    """What is kept meanwhile is of copies_model.py."""
    own = copies(peer_steps=3)
    assert own.due(5) and own.agree(alone(), 5, 1.0)
    own.staged((5, "a"), 0, 1, 0.1)
    own.take(Report(save=1, done="uncopied", reason="no room"))
    assert own.agree(alone(), 8, 1.0)
    assert not own.due(13) and own.due(14)


def test_copies_keep_below_two_percent_of_the_steps_time() -> None:
    own = copies()
    for save, step in enumerate((5, 6), start=1):
        assert own.agree(alone(), step, 0.5)
        own.staged((step, "a"), 0, save, 0.1 if save == 2 else 60.0)
        own.take(Report(save=save, done="copied"))
    own.agree(alone(), 7, 0.5)
    assert not own.due(23) and own.due(24), "0.1 s in 17 steps of 0.5 s, of which 1.2 % are 0.102 s"


def test_copies_take_at_most_two_percent_of_the_nodes_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    own = copies()
    assert own.agree(alone(), 5, 0.5)
    own.staged((5, "a"), 0, 1, 0.0)
    own.take(Report(save=1, done="copied", processor_s=2.0))
    own.agree(alone(), 6, 0.5)
    assert not own.due(89) and own.due(90), "half a second of all cores in 84 steps of 0.5 s"


def test_a_memory_that_outlives_a_start_keeps_what_it_held_when_the_state_has_grown() -> None:
    size = 1 << 20
    held = b"a copy that a restore may need"
    outliving = os.memfd_create("outliving")
    os.ftruncate(outliving, size)
    os.pwrite(outliving, held, 4321)
    staging = Staging(os.dup(outliving))
    staging.prepare(pieces_of(capture({"t": torch.ones(2 * size, dtype=torch.uint8)}), 0, 1))
    staging.close()
    assert os.fstat(outliving).st_size >= 2 * size
    assert os.pread(outliving, len(held), 4321) == held
    os.close(outliving)


class AtStep:
    """What a report asks a writer."""

    durable_step = 0
    durable_since = 0.0
    busy = False

    def __init__(self, own: Copies) -> None:
        self._own = own

    @property
    def copied_step(self) -> int:
        return self._own.copied_step


def reported(own: Copies, step: int, capsys: pytest.CaptureFixture[str]) -> str:
    Reports(None, "job").of_loss(
        cast(CheckpointWriter, AtStep(own)), step, "Connection closed by peer"
    )
    return capsys.readouterr().out


def test_steps_that_the_memory_of_nodes_holds_are_not_reported_as_lost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = copies()
    assert "leaving at step 52, the newest checkpoint is of step 0: 52 steps (" in reported(
        own, 52, capsys
    )
    own.staged((52, "a"), 0, 1, 0.1)
    assert "52 steps (" in reported(own, 52, capsys) and own.copied_step == -1, "still on its way"
    own.take(Report(save=1, done="copied"))
    text = reported(own, 52, capsys)
    assert (
        "leaving at step 52, the memory of nodes holds step 52: 0 steps are lost; without it the"
        " newest" in text
    )
    assert "Connection closed by peer" in text
    own.staged((53, "a"), 1, 2, 0.1)
    own.take(Report(save=2, done="uncopied", reason="no room"))
    assert "52 steps" in reported(own, 52, capsys), (
        "the version before was not known to be whole on every rank"
    )
