"""Explores every interleaving of copies in neighbors' memory, as copies_model.py describes it."""

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.checkpoint.peers.keeper_client import Version
from holdfast.checkpoint.peers.slots import Slot, choose_slot
from holdfast.checkpoint.peers.storage import Offer, list_offers
from holdfast.checkpoint.save.copies import Copies
from holdfast.checkpoint.save.uploader import Uploader
from holdfast.runtime import logs
from workloads.library.tests.checkpoint.saves.copies_model import Model
from workloads.library.tests.interleavings import explore

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "warning", lambda *_: None)


@pytest.mark.parametrize(
    "model",
    [
        Model(),
        Model(first=1, zombies=True),
        Model(first=1, deaths=2),
        Model(first=1, steps=3, failures=1),
        Model(first=1, nodes=3),
        Model(folder=True),
        Model(first=1, folder=True, deaths=2),
        Model(
            first=1,
            folder=True,
            steps=3,
            failures=1,
        ),
    ],
    ids=str,
)
def test_every_interleaving_restores_the_newest_whole_version(model: Model) -> None:
    assert explore(model) > 1000


class WholeIfOneIs(Copies):
    def _decide(self, states: list[str], step_s: float) -> dict[str, Any]:
        return super()._decide(states, step_s) | {"whole": "copied" in states}


def oldest_slot(
    slots: Sequence[Slot],
    version: Version,
    keep: Version,
) -> Slot:
    """Ignores the version that the sender needs."""
    return choose_slot(slots, version, (-1, ""))


def any_memory(uploader: Uploader, reserved: int) -> int:
    return Uploader.free_memory(uploader)


def newest_alone(*arguments: Any, **options: Any) -> list[Offer]:
    return list_offers(*arguments, **options)[:1]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            Model(
                first=1,
                copies=WholeIfOneIs,
                steps=3,
                failures=1,
            ),
            "was whole|is there",
        ),
        (
            Model(
                first=1,
                slot=oldest_slot,
                steps=3,
                failures=1,
            ),
            "was whole",
        ),
        (Model(first=1, memory=any_memory), "was whole"),
        (
            Model(
                first=1,
                folder=True,
                steps=3,
                spools=False,
            ),
            "was whole",
        ),
        (
            Model(first=1, check_epoch=lambda message_epoch, node_epoch: None, zombies=True),
            "was whole",
        ),
        (
            Model(
                first=1,
                offers=newest_alone,
                steps=3,
                failures=1,
            ),
            "is there",
        ),
    ],
    ids=["one-for-all", "slot", "memory", "folder", "zombie", "one-offer"],
)
def test_the_model_finds_a_broken_protocol(broken: Model, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        explore(broken)
