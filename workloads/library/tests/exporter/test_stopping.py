"""A signal stops the exporter wherever its main thread stands."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[4]
# The worst place: inside Event.wait, with the event's lock held, where a handler that sets the event waits for ever.
PROGRAM = """
import os, signal
from holdfast.exporter.main import stopped_by_signals
stop = stopped_by_signals()
with stop._cond:
    os.kill(os.getpid(), signal.{name})
assert stop.wait(60)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_that_meets_the_event_s_lock_stops_it(name: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM.format(name=name)], cwd=ROOT, check=True, timeout=120)
