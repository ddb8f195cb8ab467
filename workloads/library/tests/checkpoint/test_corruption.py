"""Injected damage is never loaded: restore falls back to the checkpoint before."""

import random
import shutil
from pathlib import Path

import pytest

from holdfast.checkpoint import load_tensors
from holdfast.checkpoint.restore import restore
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.stores.factory import open_storage
from holdfast.support.errors import InputError
from workloads.library.tests.checkpoint.corruptions import DAMAGES, shards
from workloads.library.tests.checkpoint.jobs import RUN, build, newest
from workloads.library.tests.checkpoint.made import alone

pytestmark = pytest.mark.process
PER_KIND = 8
OLD = 3
NEW = 6


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_checkpoint_falls_back_to_the_one_before(
    pristine: Path,
    tmp_path: Path,
    kind: str,
) -> None:
    """`make bench-checkpoint` tests the same on a mesh of two axes."""
    rng = random.Random(kind)
    injections = 0
    while injections < PER_KIND:
        url = tmp_path / str(injections)
        shutil.copytree(pristine, url)
        old = url / RUN / f"step-{OLD:010d}"
        new = url / RUN / f"step-{NEW:010d}"
        if DAMAGES[kind](new, old, rng):
            assert newest(url) == OLD, f"injection {injections} of {kind} went unnoticed"
            injections += 1
        shutil.rmtree(url)


def test_job_ends_if_no_checkpoint_verifies(url: Path) -> None:
    for shard in shards(url):
        shard.write_bytes(b"")
    with pytest.raises(InputError, match="verifies"):
        load_tensors(url, RUN)
    with pytest.raises(InputError, match="none of them verifies"):
        restore(
            open_storage(str(url)),
            RUN,
            build(),
            alone(),
            Tuning(),
        )
