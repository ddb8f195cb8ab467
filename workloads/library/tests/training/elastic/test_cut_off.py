"""A lead whose right to commit is gone: taken by its own gang, beyond a torn network, or by another Job of that name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpoint.errors import Fenced, Superseded
from holdfast.checkpoint.parts import fence, survey
from holdfast.checkpoint.stores import LocalStorage
from holdfast.contract.exit_codes import EXIT_BAD_INPUT, EXIT_RETRY
from holdfast.training.elastic.gang import ElasticGang
from holdfast.training.elastic.membership import Epoch, Member, newest, propose
from holdfast.training.errors import CutOff
from workloads.library.tests.training.elastic.test_elastic_gang import one_node

STEPS = 20

pytestmark = pytest.mark.process


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage.open(str(tmp_path))


@pytest.fixture
def gang(tmp_path: Path) -> ElasticGang:
    return one_node(tmp_path, every=1)


def steps(gang: ElasticGang) -> Iterator[int]:
    """Each is done once the next is asked for."""
    with gang:
        for step in gang.steps(STEPS):
            yield step
            gang.reduce()


def beyond(storage: LocalStorage) -> None:
    """A member that cannot be reached forms the epoch after the newest."""
    found = newest(storage, "run")
    assert found
    propose(storage, "run", Epoch(number=found.number + 1, members=(Member(index=0, incarnation="beyond"),)))


def test_who_is_cut_off_from_a_gang_that_goes_on_asks_to_be_started_again(
    storage: LocalStorage, gang: ElasticGang
) -> None:
    """A code that fails the Job would end the half that works."""
    doing = steps(gang)
    next(doing)
    beyond(storage)
    fence.take(storage, "run", gang=fence.newest_gang(storage, "run"))
    with pytest.raises(CutOff) as end:
        list(doing)
    assert end.value.code == EXIT_RETRY and "torn network" in end.value.reason


def test_a_former_lead_that_takes_the_fence_late_does_not_end_the_gang(
    storage: LocalStorage, gang: ElasticGang
) -> None:
    """Frozen between its last look at the gang and its fence."""
    doing = steps(gang)
    next(doing)
    own = fence.newest_gang(storage, "run")
    assert own
    late = fence.take(storage, "run", gang=own)
    assert list(doing)[-1] == STEPS - 1
    assert survey(storage, "run")[STEPS].commit
    with pytest.raises(Fenced):
        fence.check(storage, "run", late)


@pytest.mark.parametrize("other", ["", "other places"])
def test_another_job_of_the_same_name_keeps_the_run(storage: LocalStorage, gang: ElasticGang, other: str) -> None:
    doing = steps(gang)
    next(doing)
    beyond(storage)
    fence.take(storage, "run", gang=other)
    with pytest.raises(Superseded) as end:
        list(doing)
    assert end.value.code == EXIT_BAD_INPUT
