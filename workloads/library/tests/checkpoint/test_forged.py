"""Restore skips a forged newest commit, reports the reason, and allocates no memory for it."""

import os
import shutil
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint import Checkpointer, Tuning, load_tensors
from holdfast.checkpoint.cli import app
from holdfast.checkpoint.inspection import rows
from holdfast.checkpoint.restore import restore
from holdfast.checkpoint.stores.factory import open_storage
from holdfast.vocabulary.environment import ENV_KEY_FILE
from workloads.library.tests.checkpoint.forgeries import FORGERIES, forge, spoil_random_state
from workloads.library.tests.checkpoint.made import alone

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
RUN = "run"
OLD = 1
NEW = 2


def state() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    return {
        "model": model,
        "optimizer": optimizer,
        "progress": {"at": 0},
    }


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 1 and 2, signed. The key is next to the store, like a secret on another mount."""
    folder = tmp_path_factory.mktemp("forged")
    (folder / "key").write_bytes(b"k" * 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENV_KEY_FILE, str(folder / "key"))
        saved_state = state()
        with Checkpointer(
            str(folder / "url"),
            saved_state,
            run=RUN,
            every=10**9,
        ) as ckpt:
            for step in (OLD, NEW):
                saved_state["progress"]["at"] = step
                ckpt.save(step)
                assert ckpt.wait()
    return folder


@pytest.fixture(params=["with the key", "without a key"])
def url(
    request: pytest.FixtureRequest,
    pristine: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A copy of the store. With the key, its forger has it too."""
    if request.param == "with the key":
        monkeypatch.setenv(ENV_KEY_FILE, str(pristine / "key"))
    return Path(shutil.copytree(pristine / "url", tmp_path / "url"))


@pytest.mark.parametrize(
    ("url", "name"),
    list(
        zip(
            cycle(["with the key", "without a key"]),
            FORGERIES,
            strict=False,
        )
    ),
    indirect=["url"],
)
def test_forged_checkpoint_is_skipped(url: Path, name: str) -> None:
    forge(url / RUN / f"step-{NEW:010d}", FORGERIES[name])
    step, _ = load_tensors(str(url), RUN)
    assert step == OLD
    inspected = rows(open_storage(str(url)), RUN, read=True)
    sound = {row.step: row.sound for row in inspected}
    assert sound[NEW] is False, "the nightly verify finds it too"
    assert list_skipped(url) == [NEW]


def test_random_state_that_no_generator_accepts_is_skipped(url: Path) -> None:
    forge(url / RUN / f"step-{NEW:010d}", spoil_random_state)
    assert list_skipped(url) == [NEW]


def test_pipe_named_like_a_commit_is_ignored(url: Path) -> None:
    commit = url / RUN / f"step-{NEW:010d}" / "COMMIT.json"
    commit.unlink()
    os.mkfifo(commit)
    assert list_skipped(url) == []


def test_forged_tensor_key_cannot_control_the_terminal(
    url: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "[/]\x1b[2J[link=http://e.org]##[error]"
    folder = url / RUN / f"step-{NEW:010d}"
    forge(folder, lambda forged: forged.largest.update(key=key, at=1 << 61))
    app(["list", str(url)], standalone_mode=False)
    output = capsys.readouterr().out
    assert "[/]\\x1b[2J[link=http://e.org]#_[error]" in output
    assert "\x1b" not in output
    assert "verified" in output, "the other step"


def list_skipped(url: Path) -> list[int]:
    """Restore as a trainer does, and return the steps that were skipped before the old one."""
    restored_state = state()
    restored = restore(
        open_storage(str(url)),
        RUN,
        restored_state,
        alone(),
        Tuning(),
    )
    assert restored.step == OLD
    assert restored_state["progress"]["at"] == OLD
    return [step for step, _ in restored.skipped]
