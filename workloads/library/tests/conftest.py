"""Checks that every test of the library leaves its process as it was, and saves time in each."""

import logging
import signal
import traceback
from collections.abc import Iterator
from functools import cache

import pytest
import typer.testing

from holdfast.runtime import shutdown

SIGNALS = (*shutdown.NOTICES, shutdown.DRAIN_SIGNAL)

# Each invocation of a command would make all commands again from their functions.
typer.testing._get_command = cache(typer.testing._get_command)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


def pytest_collection_finish() -> None:
    """Lets torch's loggers reach the root logger.

    pytest adds its handlers to each logger that does not, six times a test, and torch has forty.
    """
    for name, logger in logging.Logger.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture(scope="session", autouse=True)
def install_stacks() -> Iterator[list[str]]:
    """Yields the stack of each installation of a Shutdown in this process."""
    stacks: list[str] = []
    install = shutdown.Shutdown.install

    def record(self: shutdown.Shutdown) -> shutdown.Shutdown:
        stacks.append("".join(traceback.format_stack()))
        return install(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutdown.Shutdown, "install", record)
        yield stacks


@pytest.fixture(autouse=True)
def signals_are_left_alone(install_stacks: list[str]) -> Iterator[None]:
    """Fails a test that leaves this process with other handlers, another mask or its Shutdown.

    Later tests of the same process would pass or fail by their order.
    """
    handlers = [signal.getsignal(signum) for signum in SIGNALS]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    is_installed = shutdown.is_installed()
    if is_installed:
        shutdown.of_process().uninstall()
    left_handlers = [signal.getsignal(signum) for signum in SIGNALS]
    for signum, handler in zip(SIGNALS, handlers, strict=True):
        signal.signal(signum, handler)
    left_blocked = signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert not is_installed, f"the test leaves a Shutdown, installed by:\n{install_stacks[-1]}"
    assert left_handlers == handlers, "the test leaves this process with other signal handlers"
    assert left_blocked == blocked, "the test leaves this process with other blocked signals"
