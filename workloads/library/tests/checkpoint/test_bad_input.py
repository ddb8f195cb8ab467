"""What a user gets wrong is an error on every rank, soon, and leaves nothing that looks like a checkpoint."""

import json
from collections.abc import Callable
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
    return {str(path.relative_to(url)): path.read_bytes() for path in url.rglob("*") if path.is_file()}


def refused(jobs: Jobs, url: Path | str, folder: Path, *messages: str, began: bool = False, **options: Any) -> None:
    """Both ranks end with the same error and none with a time-out. A job that `began` has taken the run for itself."""
    log = folder / "log"
    before = contents(Path(url))
    assert jobs.run(url, folder, world=2, log=str(log), **options) == [1, 1], log.read_text()
    for message in ("InputError", *messages):
        assert log.read_text().count(message) >= 2, log.read_text()
    assert "RankLost" not in log.read_text()
    after = contents(Path(url))
    added = after.keys() - before.keys()
    assert after == before or (began and added == {f"{RUN}/epochs/0000000002.json"} and before.items() <= after.items())


def unsavable(state: State) -> None:
    state["extra"] = {"when": {1, 2}}


def one_more_tensor(state: State) -> None:
    state["model"].register_buffer("only_here", torch.zeros(1))


def wider(state: State) -> None:
    state["model"][2] = torch.nn.Linear(WIDTH, WIDTH + 1)
    state["optimizer"] = torch.optim.AdamW(state["model"].parameters())


def renamed(state: State) -> None:
    state["network"] = state.pop("model")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [(unsavable, "extra/when"), (one_more_tensor, "only_here"), (wider, "other shapes")],
)
def test_a_state_that_is_wrong_on_one_rank_is_an_error_on_both(
    jobs: Jobs, tmp_path: Path, spoil: Callable[[State], None], message: str
) -> None:
    refused(jobs, tmp_path / "url", tmp_path, message, spoil=spoil)


@pytest.mark.parametrize(("late", "message"), [(unsavable, "extra/when"), (one_more_tensor, "only_here")])
def test_a_state_that_goes_wrong_on_one_rank_in_training_is_an_error_on_both(
    jobs: Jobs, url: Path, tmp_path: Path, late: Callable[[State], None], message: str
) -> None:
    refused(jobs, url, tmp_path, message, spoil_late=(SAVED + 2, late), began=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [(one_more_tensor, "only_here"), (renamed, "network")],
)
def test_a_state_other_than_the_saved_one_is_an_error_on_both(
    jobs: Jobs, url: Path, tmp_path: Path, change: Callable[[State], None], message: str
) -> None:
    refused(jobs, url, tmp_path, "another model", message, change=change)


def test_a_checkpoint_of_another_run_or_format_is_an_error_on_both(jobs: Jobs, url: Path, tmp_path: Path) -> None:
    commit = url / RUN / f"step-{SAVED:010d}" / "COMMIT.json"
    body = json.loads(commit.read_text())["body"] | {"schema": "holdfast.checkpoint/2"}
    commit.write_bytes(envelope(encoded(body)))
    refused(jobs, url, tmp_path, "another format version")
    (url / RUN).rename(url / "elsewhere")
    commit = url / "elsewhere" / f"step-{SAVED:010d}" / "COMMIT.json"
    commit.unlink()
    refused(jobs, url, tmp_path, "another run", run="elsewhere")


def test_a_folder_that_one_rank_cannot_use_is_an_error_on_both(jobs: Jobs, url: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(jobs, url, tmp_path, "cannot be used", other_url=str(tmp_path / "file" / "below"))
