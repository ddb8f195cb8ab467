"""Jobs that are killed at any moment: the newest commit restores bit-exact, and the job ends with
the bits of a quiet run.
"""

import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.checkpoint.failpoints import POINTS
from holdfast.vocabulary.exit_codes import EXIT_RETRY
from tests.support import commits
from workloads.library.tests.checkpoint.jobs import (
    EVERY,
    STEPS,
    Jobs,
    finish,
    list_committed,
    newest,
)
from workloads.library.tests.processes import children

pytestmark = pytest.mark.process

UPLOADER_POINTS = [p for p in POINTS if p.startswith(("upload.", "commit.", "retention."))]
TRAINER_POINTS = [p for p in POINTS if p not in UPLOADER_POINTS]
REACHED_WHEN_DURABLE = ("upload.end", "retention.begin", "retention.uncommitted", "retention.end")


def newest_sound_step(url: Path) -> int:
    """Returns the step of the newest checkpoint, which must verify; 0: nothing is committed yet."""
    return newest(url) if commits(url) else 0


def check_completes(
    jobs: Jobs,
    url: Path,
    folder: Path,
    *,
    world: int = 1,
) -> None:
    before = newest_sound_step(url)
    assert jobs.run(url, folder, world=world) == [0] * world
    assert newest(url) == STEPS >= before


# A start reaches each point of its restore once.
TIMES: list[tuple[str, int]] = []
for _point in TRAINER_POINTS:
    TIMES.append((_point, 1))
    if not _point.startswith("restore"):
        TIMES.append((_point, 3))


@pytest.mark.parametrize(("point", "nth"), TIMES)
def test_a_trainer_killed_at_a_named_point_loses_nothing_committed(
    jobs: Jobs,
    tmp_path: Path,
    point: str,
    nth: int,
) -> None:
    url = tmp_path / "url"
    if point.startswith("restore"):
        jobs.run(url, tmp_path, steps=7)
    codes = jobs.run(
        url,
        tmp_path,
        kill_at=f"{point}:{nth}",
        wait=True,
    )
    assert codes == [-signal.SIGKILL], f"{point} was not reached"
    check_completes(jobs, url, tmp_path)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", UPLOADER_POINTS)
def test_an_uploader_killed_at_a_named_point_is_replaced(
    jobs: Jobs,
    tmp_path: Path,
    point: str,
    nth: int,
) -> None:
    url = tmp_path / "url"
    log = tmp_path / "log"
    codes = jobs.run(
        url,
        tmp_path,
        kill_at=f"{point}:{nth}",
        wait=True,
        log=str(log),
    )
    # The run is complete only if its last state is known to be stored: the last save's uploader
    # died at the same point.
    is_complete = newest_sound_step(url) == STEPS and point != "commit.written"
    assert codes == [0 if is_complete else EXIT_RETRY], log.read_text()
    if nth == 1 and point not in REACHED_WHEN_DURABLE:
        assert "the uploader process has died" in log.read_text(), f"{point} was not reached"
    if nth == 2 and point != "upload.shard":  # a save has several
        assert list_committed(url)[0] > 2 * EVERY, "the second uploader has committed"
    # A new uploader has the same orders in its environment, so it dies at the same point again.
    check_completes(jobs, url, tmp_path)


def test_processes_killed_at_random_moments_never_lose_a_commit(jobs: Jobs, tmp_path: Path) -> None:
    rng = random.Random(20261121)
    url = tmp_path / "url"
    kills = 0
    rounds = 0
    while kills < 30:
        rounds += 1
        ranks = jobs.start(
            url / str(rounds // 8),
            tmp_path,
            every=1,
            steps=STEPS,
        )
        ranks[0].join(rng.uniform(0.0, 0.5))
        kills += ranks[0].is_alive()
        victims = rng.choice(("trainer", "uploader", "all"))
        if victims != "trainer":
            for uploader in children(ranks[0].pid or 0):
                with suppress(ProcessLookupError):
                    os.kill(uploader, signal.SIGKILL)
        if victims == "uploader":
            ranks[0].join(rng.uniform(0.0, 0.3))
        ranks[0].kill()
        finish(ranks)
        newest_sound_step(url / str(rounds // 8))
    check_completes(jobs, url / "0", tmp_path)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_while_staging_leaves_the_last_commit(
    jobs: Jobs,
    tmp_path: Path,
    victim: int,
) -> None:
    url = tmp_path / "url"
    ranks = jobs.start(
        url,
        tmp_path,
        world=2,
        kill_at="stage.end:3",
        kill_rank=victim,
        wait=True,
    )
    ranks[victim].join(120)
    assert ranks[victim].exitcode == -signal.SIGKILL
    ranks[1 - victim].kill()
    finish(ranks)
    assert newest_sound_step(url) in (3, 6)
    check_completes(
        jobs,
        url,
        tmp_path,
        world=2,
    )


def test_two_ranks_with_a_cadence_in_seconds_save_the_same_steps(
    jobs: Jobs, tmp_path: Path
) -> None:
    url = tmp_path / "url"
    log = tmp_path / "log"
    codes = jobs.run(
        url,
        tmp_path,
        world=2,
        steps=60,
        every="0.05s",
        keep=10**6,
        wait=True,
        log=str(log),
    )
    assert codes == [0, 0], log.read_text()
    assert len(list_committed(url)) > 2, log.read_text()
    assert "failed" not in log.read_text(), "each commit needs both ranks"
