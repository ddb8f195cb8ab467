"""A mistake of the user is soon an error on every rank, and leaves no trace of a checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from workloads.library.tests.checkpoint.forgeries import encode_json, envelope
from workloads.library.tests.checkpoint.jobs import RUN, WIDTH, Jobs

pytestmark = pytest.mark.process
State = dict[str, Any]
SAVED = 6


def contents(url: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for path in url.rglob("*"):
        if path.is_file():
            files[str(path.relative_to(url))] = path.read_bytes()
    return files


def check_refused(
    jobs: Jobs,
    url: Path,
    folder: Path,
    *messages: str,
    fenced: bool = False,
    **options: Any,
) -> None:
    """Check that both ranks end with the same error, and not by a timeout.

    `fenced`: the job fails in training, after it has taken the fence of the run.
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
    if fenced:
        after.pop(f"{RUN}/epochs/0000000002.json", None)
    assert after == before


def add_unsavable(state: State) -> None:
    state["extra"] = {"when": {1, 2}}


def add_tensor(state: State) -> None:
    state["model"].register_buffer("only_here", torch.zeros(1))


def widen(state: State) -> None:
    state["model"][2] = torch.nn.Linear(WIDTH, WIDTH + 1)
    state["optimizer"] = torch.optim.AdamW(state["model"].parameters())


def rename_entry(state: State) -> None:
    state["network"] = state.pop("model")


IN_TRAINING = SAVED + 2


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        # On one rank, at the start.
        ({"spoil": add_unsavable}, ["extra/when"]),
        ({"spoil": add_tensor}, ["only_here"]),
        ({"spoil": widen}, ["other shapes"]),
        # On one rank, in training.
        ({"spoil_late": (IN_TRAINING, add_unsavable), "fenced": True}, ["extra/when"]),
        ({"spoil_late": (IN_TRAINING, add_tensor), "fenced": True}, ["only_here"]),
        # On both ranks, a state that differs from the saved one.
        ({"change": add_tensor}, ["another model", "only_here"]),
        ({"change": rename_entry}, ["another model", "network"]),
    ],
)
def test_wrong_state_on_one_rank_is_an_error_on_both(
    jobs: Jobs,
    url: Path,
    tmp_path: Path,
    options: dict[str, Any],
    messages: list[str],
) -> None:
    check_refused(
        jobs,
        url,
        tmp_path,
        *messages,
        **options,
    )


def test_other_run_or_format_is_an_error_on_both(
    jobs: Jobs,
    url: Path,
    tmp_path: Path,
) -> None:
    commit = url / RUN / f"step-{SAVED:010d}" / "COMMIT.json"
    body = json.loads(commit.read_text())["body"] | {"schema": "holdfast.checkpoint/2"}
    commit.write_bytes(envelope(encode_json(body)))
    check_refused(
        jobs,
        url,
        tmp_path,
        "another format version",
    )
    (url / RUN).rename(url / "elsewhere")
    commit = url / "elsewhere" / f"step-{SAVED:010d}" / "COMMIT.json"
    commit.unlink()
    check_refused(
        jobs,
        url,
        tmp_path,
        "another run",
        run="elsewhere",
    )


def test_folder_unusable_for_one_rank_is_an_error_on_both(
    jobs: Jobs,
    url: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    check_refused(
        jobs,
        url,
        tmp_path,
        "cannot be used",
        other_url=str(tmp_path / "file" / "below"),
    )
