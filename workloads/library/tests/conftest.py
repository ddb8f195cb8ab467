"""What every test of the library leaves as it was."""

import signal
from collections.abc import Iterator

import pytest

from holdfast.runtime import shutdown

SIGNALS = (*shutdown.NOTICES, shutdown.DRAIN_SIGNAL)


@pytest.fixture(autouse=True)
def signals_are_left_alone() -> Iterator[None]:
    """Fails a test that leaves this process with other signal handlers, or with its Shutdown.

    Later tests of the same process would pass or fail by their order.
    """
    handlers = [signal.getsignal(signum) for signum in SIGNALS]
    yield
    is_installed = shutdown.is_installed()
    if is_installed:
        shutdown.of_process().uninstall()
    left_handlers = [signal.getsignal(signum) for signum in SIGNALS]
    for signum, handler in zip(SIGNALS, handlers, strict=True):
        signal.signal(signum, handler)
    assert not is_installed, "the test leaves this process with its Shutdown installed"
    assert left_handlers == handlers, "the test leaves this process with other signal handlers"
