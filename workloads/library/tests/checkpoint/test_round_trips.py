"""The page of round trips is what this code does: every row is on it, and a part of them is taken again here."""

from pathlib import Path

import pytest

from workloads.library.tests.checkpoint.jobs import Jobs
from workloads.library.tests.checkpoint.round_trips.layouts import EXACT, LAYOUTS
from workloads.library.tests.checkpoint.round_trips.objects import objects
from workloads.library.tests.checkpoint.round_trips.page import PAGE, rows_of
from workloads.library.tests.checkpoint.round_trips.trips import all_layouts, all_objects

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
REBUILD = "python -m workloads.library.tests.checkpoint.round_trips"
# The last four on the real classes: what is refused by the name of a class must be what bears that name.
AGAIN = [
    "expert parallel with FSDP2",
    "HSDP (FSDP2, 2 replicas)",
    "FSDP1, full state, module",
    "FSDP1, sharded state without a mesh",
    "FSDP1, optimizer",
    "ZeroRedundancyOptimizer",
    "pipeline stages",
    "pipeline stages, PerRank",
]


def on_the_page() -> dict[str, str]:
    return rows_of(PAGE.read_text())


def reason(row: str) -> str:
    """Without what follows from the number of ranks."""
    return row.partition(";")[0]


def test_the_page_has_every_row_and_no_other() -> None:
    names = {layout.name for layout in LAYOUTS} | {one.name for group in objects().values() for one in group}
    assert on_the_page().keys() == names, REBUILD
    strange = {
        name: found for name, found in on_the_page().items() if not found.startswith((EXACT, "refused: ", "not to"))
    }
    assert not strange, "restored, and not exact"


@pytest.mark.filterwarnings("ignore")
def test_objects_come_back_as_the_page_says(tmp_path: Path) -> None:
    found = {name: outcome for rows in all_objects(tmp_path).values() for name, outcome in rows.items()}
    page = on_the_page()
    assert {name: page[name] for name in found} == found, REBUILD


def test_layouts_come_back_on_fewer_ranks_as_the_page_says(jobs: Jobs, tmp_path: Path) -> None:
    found = all_layouts(jobs, tmp_path / "layouts", AGAIN, worlds=(2, 1))
    page = on_the_page()
    assert {name: reason(page[name]) for name in AGAIN} == {name: reason(row) for name, row in found.items()}, REBUILD
