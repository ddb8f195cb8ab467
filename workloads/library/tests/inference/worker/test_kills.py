import json
import subprocess
import sys

import pytest


@pytest.mark.process
def test_kills_at_every_step_lose_nothing_and_double_nothing() -> None:
    """A sample; `make bench-batch` kills 500 times."""
    command = [sys.executable, "-m", "workloads.library.tests.bench.batch_kills", "--kills", "26", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    result = json.loads(done.stdout.splitlines()[-1])
    assert all(result["goals"].values()), result
    assert done.returncode == 0
