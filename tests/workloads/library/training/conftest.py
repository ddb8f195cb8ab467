import pytest

from tests.workloads.library.training.runs import Run


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run that every disturbed one has to equal, to the last bit."""
    run = Run(folder=tmp_path_factory.mktemp("undisturbed"))
    assert run.complete() == 0, run.log()
    return run
