"""What a user gets wrong is an error on every rank, soon, and leaves nothing that looks like a
checkpoint.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from workloads.library.tests.checkpoint.forgeries import encoded, envelope
from workloads.library.tests.checkpoint.jobs import RUN, WIDTH, Jobs

pytestmark = pytest.mark.process
State = dict[str, Any]
SAVED = 6


def contents(url: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(url)): path.read_bytes() for path in url.rglob("*") if path.is_file()
    }


def refused(
    jobs: Jobs, url: Path, folder: Path, *messages: str, began: bool = False, **options: Any
) -> None:
    """Both ranks end with the same error and none with a time-out. A job that `began` has taken the
    run for itself.
    """
    log = folder / "log"
    before = contents(url)
    assert jobs.run(
        url,
        folder,
        world=2,
        log=str(log),
        **options,
    ) == [1, 1], log.read_text()
    for message in ("InputError", *messages):
        assert log.read_text().count(message) >= 2, log.read_text()
    assert "RankLost" not in log.read_text()
    after = contents(url)
    added = after.keys() - before.keys()
    assert after == before or (
        began and added == {f"{RUN}/epochs/0000000002.json"} and before.items() <= after.items()
    )


def unsavable(state: State) -> None:
    state["extra"] = {"when": {1, 2}}


def one_more_tensor(state: State) -> None:
    state["model"].register_buffer("only_here", torch.zeros(1))


def wider(state: State) -> None:
    state["model"][2] = torch.nn.Linear(WIDTH, WIDTH + 1)
    state["optimizer"] = torch.optim.AdamW(state["model"].parameters())


def renamed(state: State) -> None:
    state["network"] = state.pop("model")


IN_TRAINING = SAVED + 2


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        # on one rank at the start
        ({"spoil": unsavable}, ["extra/when"]),
        ({"spoil": one_more_tensor}, ["only_here"]),
        ({"spoil": wider}, ["other shapes"]),
        # on one rank in training
        ({"spoil_late": (IN_TRAINING, unsavable), "began": True}, ["extra/when"]),
        ({"spoil_late": (IN_TRAINING, one_more_tensor), "began": True}, ["only_here"]),
        # on both another one than was saved
        ({"change": one_more_tensor}, ["another model", "only_here"]),
        ({"change": renamed}, ["another model", "network"]),
    ],
)
def test_a_state_that_is_wrong_on_one_rank_is_an_error_on_both(
    jobs: Jobs,
    url: Path,
    tmp_path: Path,
    options: dict[str, Any],
    messages: list[str],
) -> None:
    refused(jobs, url, tmp_path, *messages, **options)


def test_a_checkpoint_of_another_run_or_format_is_an_error_on_both(
    jobs: Jobs, url: Path, tmp_path: Path
) -> None:
    commit = url / RUN / f"step-{SAVED:010d}" / "COMMIT.json"
    body = json.loads(commit.read_text())["body"] | {"schema": "holdfast.checkpoint/2"}
    commit.write_bytes(envelope(encoded(body)))
    refused(jobs, url, tmp_path, "another format version")
    (url / RUN).rename(url / "elsewhere")
    commit = url / "elsewhere" / f"step-{SAVED:010d}" / "COMMIT.json"
    commit.unlink()
    refused(jobs, url, tmp_path, "another run", run="elsewhere")


def test_a_folder_that_one_rank_cannot_use_is_an_error_on_both(
    jobs: Jobs, url: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    refused(jobs, url, tmp_path, "cannot be used", other_url=str(tmp_path / "file" / "below"))
