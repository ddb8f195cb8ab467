"""What goes into a checkpoint comes back bit for bit and trains on as without a restart, or the start refuses it."""

import re
from pathlib import Path

import pytest

from workloads.library.tests.checkpoint.jobs import Jobs
from workloads.library.tests.checkpoint.round_trips.layouts import EXACT
from workloads.library.tests.checkpoint.round_trips.trips import all_layouts, all_objects

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
WITHOUT_BYTES = re.compile("u?int[1-7]|q(u?int).*")
"""Dtypes whose elements have no bytes of their own."""
# On the real classes: what is refused by the name of a class must be what bears that name.
REFUSED = {
    "FSDP1, sharded state without a mesh": "a ShardedTensor of FSDP1",
    "FSDP1, optimizer": "holds the moments of this rank's shards only",
    "ZeroRedundancyOptimizer": "holds the moments of this rank's parameters only",
    "pipeline stages": "state differs between ranks",
    "pipeline stages, PerRank": "is of each rank's own and fits only as many ranks as saved it",
    "a partial sum": "is a partial sum",
}


@pytest.mark.filterwarnings("ignore")
def test_objects_come_back(tmp_path: Path) -> None:
    found = all_objects(tmp_path)
    others = {name: row for name, row in found.items() if row != EXACT}
    assert others.keys() == {name for name in found if WITHOUT_BYTES.fullmatch(name)}, others
    assert all(row.startswith("refused: ") for row in others.values()), others


def test_layouts_come_back_on_fewer_ranks(jobs: Jobs, tmp_path: Path) -> None:
    found = all_layouts(jobs, tmp_path / "layouts")
    wrong = {name: row for name, row in found.items() if REFUSED.get(name, EXACT) not in row}
    assert not wrong and found.keys() >= REFUSED.keys()
