"""Hooks and fixtures of every tier, in both trees of tests; loaded by pyproject.toml."""

import gc
import os
import re
import signal
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import support, tiers

# A busy machine is not a bug: no example has a time limit. If CI is set, the examples are the same
# in each run.
settings.register_profile(
    "holdfast",
    parent=settings.get_profile("ci" if os.environ.get("CI") else "default"),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("holdfast")

# A shell starts background processes with Ctrl-C ignored, and processes of tests would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Its gcloud fails at once. A test that needs answers puts its own before it.
os.environ["PATH"] = f"{Path(__file__).parent / 'offline'}:{os.environ['PATH']}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files of other tiers: importing every file takes each worker a third of a minute."""
    name = collection_path.name
    is_test = collection_path.suffix == ".py" and name.startswith("test_")
    is_marked_folder = collection_path.parent in tiers.TREES and name in tiers.MARKED_FOLDERS
    if not is_test and not is_marked_folder:
        return None
    return None if tiers.may_hold(collection_path, config.option.markexpr) else True


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without the garbage collector, which takes a fifth of the time to walk objects that
    stay.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    _refuse_hidden_marks(items)
    yield
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    if workers:
        order = tiers.deal([(item.path, _may_take_long(item)) for item in items], workers)
        items[:] = [items[index] for index in order]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print why the files of the slowest tests are slow, below pytest's own list of them."""
    if config.option.durations is None:
        return
    minimum = config.option.durations_min or 0.0  # without the option it is None
    slow: list[pytest.TestReport] = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "duration", -1) >= minimum:
                slow.append(report)
    slow.sort(key=lambda report: report.duration, reverse=True)
    del slow[config.option.durations or len(slow) :]
    page = tiers.TESTS / "SLOWEST.md"  # a fork has none
    if slow and page.exists():
        terminalreporter.write_line("why, by tests/SLOWEST.md:")
        for line in explain_slow((report.nodeid for report in slow), page.read_text()):
            terminalreporter.write_line(line)


def explain_slow(tests: Iterable[str], page: str) -> list[str]:
    """Return a line for each file of `tests`, in their order, with the page's reasons for it."""
    rows = re.findall(r"^\| [\d, ]+ \| `([^`]+)`[^|]* \| (.+) \|$", page, re.M)
    lines = []
    for file in dict.fromkeys(test.partition("::")[0] for test in tests):
        reasons = [reason for name, reason in rows if file.endswith(name)]
        lines.append(f"{file}: {'; '.join(reasons) or 'not known'}")
    return lines


def _may_take_long(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("timeout")
    return bool(mark and float(mark.args[0]) > float(item.config.getini("timeout")))


def _refuse_hidden_marks(items: list[pytest.Item]) -> None:
    """Refuse marks that the test's own file does not name: its tier would not read the file."""
    hidden = set()
    for item in items:
        for mark in item.iter_markers():
            if mark.name in tiers.READ_BY_MARK and not tiers.has_mark(item.path, [mark.name]):
                hidden.add(f"{item.path}: {mark.name}")
    if hidden:
        names = ", ".join(sorted(hidden))
        raise pytest.UsageError(f"a test's mark must be in its own file: {names}")


@pytest.fixture(scope="session")
def require() -> Callable[[object, str], None]:
    """Return support.require: `require(shutil.which("chromium"), "chromium is not installed")`."""
    return support.require
