"""A few kills of a gang at named points, one after the other; `make soak-elastic` plays three hundred and more."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[5]

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


def test_a_gang_that_is_struck_at_many_points_ends_with_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.workloads.library.training.elastic.few_kills", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["wrong"] == []
    assert len(outcome["struck"]) >= 4, outcome["struck"]
