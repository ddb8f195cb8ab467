"""`python -m workloads.library.tests.checkpoint.round_trips`: what goes into a checkpoint and comes back, as a page."""

import tempfile
import warnings
from pathlib import Path

from workloads.library.tests.checkpoint.jobs import Jobs
from workloads.library.tests.checkpoint.round_trips.page import PAGE, render
from workloads.library.tests.checkpoint.round_trips.trips import all_layouts, all_objects


def main() -> None:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="holdfast-round-trips-") as folder:
        layouts = all_layouts(Jobs(), Path(folder) / "layouts")
        found = {"Layouts over ranks": layouts} | all_objects(Path(folder) / "objects")
    PAGE.write_text(render(found))
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
