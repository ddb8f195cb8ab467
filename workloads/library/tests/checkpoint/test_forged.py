"""Whatever the newest commit holds, restore ends with the checkpoint before it, says why, and takes
no memory for it.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint import Checkpointer, Tuning, load_tensors
from holdfast.checkpoint.cli import app
from holdfast.checkpoint.inspection import rows
from holdfast.checkpoint.restore import restore
from holdfast.checkpoint.stores.opening import open_storage
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
    """Steps 1 and 2, signed: the key lies beside the store, as the secret of another mount."""
    folder = tmp_path_factory.mktemp("forged")
    (folder / "key").write_bytes(b"k" * 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENV_KEY_FILE, str(folder / "key"))
        now = state()
        with Checkpointer(str(folder / "url"), now, run=RUN, every=10**9) as ckpt:
            for step in (OLD, NEW):
                now["progress"]["at"] = step
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
    """A copy. With the key its forger has it too."""
    if request.param == "with the key":
        monkeypatch.setenv(ENV_KEY_FILE, str(pristine / "key"))
    return Path(shutil.copytree(pristine / "url", tmp_path / "url"))


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (("with the key", "without a key")[number % 2], name)
        for number, name in enumerate(FORGERIES)
    ],
    indirect=["url"],
)
def test_a_forged_checkpoint_is_passed_over(url: Path, name: str) -> None:
    forge(url / RUN / f"step-{NEW:010d}", FORGERIES[name])
    step, _ = load_tensors(str(url), RUN)
    assert step == OLD
    (newest, *_) = [row for row in rows(open_storage(str(url)), RUN, read=True) if row.step == NEW]
    assert not newest.sound, "the nightly verify finds it too"
    assert passed_over(url) == [NEW]


def test_a_random_state_that_no_generator_takes_is_passed_over(url: Path) -> None:
    forge(url / RUN / f"step-{NEW:010d}", spoil_random_state)
    assert passed_over(url) == [NEW]


def test_a_pipe_in_the_place_of_a_commit_is_no_commit(url: Path) -> None:
    commit = url / RUN / f"step-{NEW:010d}" / "COMMIT.json"
    commit.unlink()
    os.mkfifo(commit)
    assert passed_over(url) == []


def test_what_a_forger_calls_a_tensor_does_not_speak_to_the_terminal(
    url: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loud = "[/]\x1b[2J[link=http://e.org]##[error]"
    forge(
        url / RUN / f"step-{NEW:010d}", lambda forged: forged.largest.update(key=loud, at=1 << 61)
    )
    app(["list", str(url)], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "[/]\\x1b[2J[link=http://e.org]#_[error]" in shown and "\x1b" not in shown
    assert "verified" in shown, "the other step"


def passed_over(url: Path) -> list[int]:
    """Steps that a trainer's restore passed over on its way to the old one."""
    now = state()
    restored = restore(open_storage(str(url)), RUN, now, alone(), Tuning())
    assert (restored.step, now["progress"]["at"]) == (OLD, OLD)
    return [skipped for skipped, _ in restored.skipped]
