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

# A busy machine is not a bug: no example has a time limit. Where CI is set the examples are the
# same each time.
settings.register_profile(
    "holdfast",
    parent=settings.get_profile("ci" if os.environ.get("CI") else "default"),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("holdfast")

# A shell starts what it puts in the background with Ctrl-C ignored, and all that tests start would
# inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """To import every file would take each worker of a tier a third of a minute."""
    test = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    folder = collection_path.parent in tiers.TREES and collection_path.name in tiers.MARKED_FOLDERS
    if (test or folder) and not tiers.may_hold(collection_path, config.option.markexpr):
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Without the garbage collector: what is imported and collected stays, and to walk it is a
    fifth of the time.
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
        order = tiers.dealt([(item.path, _may_take_long(item)) for item in items], workers)
        items[:] = [items[place] for place in order]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """After pytest's own list of the slowest tests, where it is asked for: why their files are
    slow.
    """
    if config.option.durations is None:
        return
    least = config.option.durations_min or 0.0  # without the option it is None
    reports = [
        report
        for found in terminalreporter.stats.values()
        for report in found
        if hasattr(report, "duration")
    ]
    slow = [report for report in reports if report.duration >= least]
    slow = sorted(slow, key=lambda report: report.duration, reverse=True)[
        : config.option.durations or None
    ]
    page = tiers.TESTS / "SLOWEST.md"  # a fork has none
    if slow and page.exists():
        terminalreporter.write_line("why, by tests/SLOWEST.md:")
        for line in why_slow((report.nodeid for report in slow), page.read_text()):
            terminalreporter.write_line(line)


def why_slow(tests: Iterable[str], page: str) -> list[str]:
    """A line for each file of `tests`, in their order, with the reasons that the page has for it."""
    rows = re.findall(r"^\| [\d, ]+ \| `([^`]+)`[^|]* \| (.+) \|$", page, re.M)
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    return [
        f"{file}: {'; '.join(why for end, why in rows if file.endswith(end)) or 'not known'}"
        for file in files
    ]


def _may_take_long(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("timeout")
    return bool(mark and float(mark.args[0]) > float(item.config.getini("timeout")))


def _refuse_hidden_marks(items: list[pytest.Item]) -> None:
    """A mark that a file does not name would hide its tests from their tier."""
    given = {
        (item.path, mark.name)
        for item in items
        for mark in item.iter_markers()
        if mark.name in tiers.READ_BY_MARK
    }
    hidden = sorted(f"{path}: {mark}" for path, mark in given if not tiers.has_mark(path, [mark]))
    if hidden:
        raise pytest.UsageError(f"a test's mark must stand in its own file: {', '.join(hidden)}")


@pytest.fixture(scope="session")
def require() -> Callable[[object, str], None]:
    """`require(shutil.which("chromium"), "chromium is not installed")`."""
    return support.require
