"""Injected damages: none loads, each falls back to the checkpoint before."""

import random
import shutil
from pathlib import Path

import pytest

from holdfast.checkpoint import load_tensors
from holdfast.checkpoint.restore import restore
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.stores.opening import open_storage
from holdfast.support.errors import InputError
from workloads.library.tests.checkpoint.corruptions import DAMAGES, shards
from workloads.library.tests.checkpoint.jobs import RUN, build, newest
from workloads.library.tests.checkpoint.made import alone

pytestmark = pytest.mark.process
PER_KIND = 8
OLD = 3
NEW = 6


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_detected_and_the_checkpoint_before_it_is_restored(
    pristine: Path, tmp_path: Path, kind: str
) -> None:
    """On a mesh of two axes too, in `make bench-checkpoint`."""
    rng = random.Random(kind)
    done = 0
    while done < PER_KIND:
        url = tmp_path / str(done)
        shutil.copytree(pristine, url)
        old, new = (url / RUN / f"step-{step:010d}" for step in (OLD, NEW))
        if DAMAGES[kind](new, old, rng):
            assert newest(url) == OLD, f"injection {done} of {kind} went unnoticed"
            done += 1
        shutil.rmtree(url)


def test_if_no_checkpoint_verifies_the_job_does_not_begin_again_in_silence(url: Path) -> None:
    for shard in shards(url):
        shard.write_bytes(b"")
    with pytest.raises(InputError, match="verifies"):
        load_tensors(url, RUN)
    with pytest.raises(InputError, match="none of them verifies"):
        restore(open_storage(str(url)), RUN, build(), alone(), Tuning())
