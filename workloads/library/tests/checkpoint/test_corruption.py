"""Injected damages: none loads, each falls back to the checkpoint before."""

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.checkpoint import load_tensors
from holdfast.checkpoint.restore import restore
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.stores.opening import open_storage
from holdfast.contract.errors import InputError
from workloads.library.tests.checkpoint.corruptions import DAMAGES, shards
from workloads.library.tests.checkpoint.jobs import RUN, build, newest
from workloads.library.tests.checkpoint.made import alone

pytestmark = pytest.mark.process
PER_KIND, OLD, NEW = 8, 3, 6


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_detected_and_the_checkpoint_before_it_is_restored(pristine: Path, tmp_path: Path, kind: str) -> None:
    """On a mesh of two axes too, in `make bench-checkpoint`."""
    rng, done = random.Random(kind), 0
    while done < PER_KIND:
        url = tmp_path / str(done)
        shutil.copytree(pristine, url)
        old, new = (url / RUN / f"step-{step:010d}" for step in (OLD, NEW))
        if DAMAGES[kind](new, old, rng):
            assert newest(url) == OLD, f"injection {done} of {kind} went unnoticed"
            done += 1
        shutil.rmtree(url)


def hostile_pickle(canary: Path) -> bytes:
    """What pickle would run: open(canary, "w")."""
    return f"cbuiltins\nopen\n(S'{canary}'\nS'w'\ntR.".encode()


def test_a_pickle_in_the_place_of_any_file_is_refused_and_never_run(pristine: Path, tmp_path: Path) -> None:
    url, canary = tmp_path / "url", tmp_path / "canary"
    files = sorted(p.relative_to(pristine) for p in pristine.rglob("*") if f"step-{NEW:010d}" in str(p) and p.is_file())
    assert len(files) >= 5
    for file in files:
        shutil.copytree(pristine, url)
        (url / file).write_bytes(hostile_pickle(canary))
        assert newest(url) == OLD
        shutil.rmtree(url)
    assert not canary.exists()
    loader = "import pickle, sys; pickle.load(sys.stdin.buffer)"
    subprocess.run([sys.executable, "-c", loader], input=hostile_pickle(canary), check=True)
    assert canary.exists(), "the payload is harmless, so the test above proves nothing"


def test_if_no_checkpoint_verifies_the_job_does_not_begin_again_in_silence(url: Path) -> None:
    for shard in shards(url):
        shard.write_bytes(b"")
    with pytest.raises(InputError, match="verifies"):
        load_tensors(url, RUN)
    with pytest.raises(InputError, match="none of them verifies"):
        restore(open_storage(str(url)), RUN, build(), alone(), Tuning())
