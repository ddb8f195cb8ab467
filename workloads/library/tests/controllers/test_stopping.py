"""A signal stops exporter and mover wherever their main thread is."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

# The worst place: inside Event.wait, with the event's lock held, where a handler that sets the
# event waits for ever.
PROGRAM = """
import os, signal
from holdfast.controllers import loop
from holdfast.runtime import shutdown
stop = shutdown.of_process()
with stop._asked._cond:
    os.kill(os.getpid(), signal.{name})
loop.run(lambda: None, (), None, stop, 600.0)
assert stop.requested
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_inside_event_wait_ends_the_loop(name: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM.format(name=name)], check=True, timeout=240)
