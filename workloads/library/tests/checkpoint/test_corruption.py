"""Injected damages, half of them on a mesh of two axes: none loads, each falls back to the checkpoint before."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.checkpoint import load_tensors
from holdfast.checkpoint.restore import restore
from holdfast.checkpoint.settings import Tuning
from holdfast.checkpoint.stores.opening import open_storage
from holdfast.contract.errors import InputError
from workloads.library.tests.checkpoint import mesh_checkpoints
from workloads.library.tests.checkpoint.corruptions import DAMAGES, shards
from workloads.library.tests.checkpoint.jobs import RUN, Jobs, build, newest
from workloads.library.tests.checkpoint.made import alone
from workloads.library.tests.checkpoint.mesh_checkpoints import NEW, OLD

pytestmark = pytest.mark.process
# Fixture that wrote two checkpoints -> what gives the step of the newest that is sound.
LAYOUTS: dict[str, Callable[[Path, Path], int]] = {
    "pristine": lambda url, _: newest(url),
    "of_a_mesh": mesh_checkpoints.verified,
}
PER_KIND = 4


@pytest.fixture(scope="module")
def of_a_mesh(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mesh_checkpoints.write(jobs, tmp_path_factory.mktemp("mesh"))


@pytest.mark.parametrize("of", LAYOUTS)
@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_detected_and_the_checkpoint_before_it_is_restored(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, of: str
) -> None:
    sound: Path = request.getfixturevalue(of)
    newest = LAYOUTS[of]
    rng = random.Random(kind)
    done = 0
    while done < PER_KIND:
        url = tmp_path / str(done)
        shutil.copytree(sound, url)
        step = {n: url / RUN / f"step-{n:010d}" for n in (OLD, NEW)}
        applied = DAMAGES[kind](step[NEW], step[OLD], rng)
        if applied:
            assert newest(url, sound.parent) == OLD, f"injection {done} of {kind} went unnoticed"
            done += 1
        shutil.rmtree(url)


def test_a_trainer_logs_what_it_passed_over_and_why(jobs: Jobs, url: Path, tmp_path: Path) -> None:
    shards(url / RUN / f"step-{NEW:010d}")[0].unlink()
    log = tmp_path / "log"
    assert jobs.run(url, tmp_path, world=2, log=str(log)) == [0, 0]
    assert f"skipped step {NEW}: rank" in log.read_text() and "is missing" in log.read_text()
    assert newest(url) == 12


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
