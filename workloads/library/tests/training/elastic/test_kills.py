"""The drills of a gang: which member is lost, and when."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workloads.library.tests.training.elastic.few_kills import DRILLS

ROOT = Path(__file__).parents[5]
# How many of a drill's strikes must have come: a point that a late place never reaches strikes nobody.
FEWEST = {"during a grow": 2, "at many points": 4}

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


def test_a_gang_that_loses_one_two_its_lead_or_all_ends_with_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "workloads.library.tests.training.elastic.few_kills", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    played = {line["drill"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert {drill: outcome["wrong"] for drill, outcome in played.items()} == {drill: [] for drill in DRILLS}
    for drill, outcome in played.items():
        assert len(outcome["struck"]) >= FEWEST.get(drill, len(DRILLS[drill])), outcome
