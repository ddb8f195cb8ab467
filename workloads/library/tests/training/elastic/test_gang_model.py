"""Every interleaving of an elastic gang's protocol, as gang_model.py describes it."""

import pytest

from workloads.library.tests.interleavings import explore
from workloads.library.tests.training.elastic.gang_model import Model

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    "model",
    [
        Model(),
        Model(steps=3),
        Model(notices=1),
        Model(newcomer=True),
        Model(min_nodes=2),
        Model(deaths=2, notices=1),
        Model(notices=1, impatient=1),
        Model(newcomer=True, notices=1, impatient=1),
        Model(again=True, impatient=1, late=1, steps=1),
        Model(again=True, impatient=1, late=1, deaths=0),
    ],
    ids=str,
)
def test_every_interleaving_of_three_members_ends_well(model: Model) -> None:
    assert explore(model) > 500


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (Model(repairs=False), "two different steps"),
        (Model(create_only=False, impatient=1), "two different steps|stuck|left behind|more than a step"),
        (Model(again=True, impatient=1, late=1, deaths=0, remembers=False), "no end"),
        (Model(again=True, impatient=1, deaths=0, skips_askers=False), "stuck"),
    ],
    ids=["no-repair", "storage-that-replaces", "back-into-an-old-epoch", "an-asker-that-is-to-commit"],
)
def test_the_model_finds_a_broken_protocol(broken: Model, found: str) -> None:
    with pytest.raises(AssertionError, match=found):
        explore(broken)
