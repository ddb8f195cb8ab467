"""A writer of the bucket without the key cannot make a checkpoint that is restored."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint import Checkpointer, load_tensors
from holdfast.support.errors import InputError
from holdfast.vocabulary.environment import ENV_KEY_FILE
from workloads.library.tests.checkpoint.forgeries import encode_json
from workloads.library.tests.checkpoint.jobs import list_committed

RUN = "run"


def save(
    url: Path,
    step: int,
    keep: int = 3,
) -> None:
    tensor = torch.zeros(8)
    with Checkpointer(
        str(url),
        {"w": tensor},
        run=RUN,
        every=10**9,
        keep=keep,
    ) as ckpt:
        tensor.fill_(step)
        ckpt.save(step)
        assert ckpt.wait()


def use_key(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> Path:
    path = folder / name
    path.write_bytes(hashlib.sha256(name.encode()).hexdigest().encode())
    monkeypatch.setenv(ENV_KEY_FILE, str(path))
    return path


def load_step(url: Path) -> int:
    """Return the step of the newest checkpoint, after a check that it holds the tensor of it."""
    step, tensors = load_tensors(str(url), RUN)
    assert tensors["w"][0] == step
    return step


@pytest.mark.process
def test_commit_without_the_key_or_with_another_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forgery is whole and matches all its own checksums."""
    url = tmp_path / "url"
    use_key(tmp_path, monkeypatch, "key")
    save(url, 1)
    monkeypatch.delenv(ENV_KEY_FILE)
    save(url, 2)
    assert load_step(url) == 2
    use_key(tmp_path, monkeypatch, "another key")
    with pytest.raises(InputError, match="none of them verifies"):
        save(url, 3)
    use_key(tmp_path, monkeypatch, "key")
    assert load_step(url) == 1


def change_commit(commit: Path, **fields: Any) -> None:
    """Change fields of a commit, and its digest, but not its signature."""
    envelope = json.loads(commit.read_text())
    body = encode_json(envelope["body"] | fields)
    digest = hashlib.sha256(body).hexdigest()
    commit.write_bytes(
        b'{"body":%s,"seal":"%s","sha256":"%s"}'
        % (body, envelope["seal"].encode(), digest.encode())
    )


@pytest.mark.process
def test_changed_or_replayed_commit_with_a_new_digest_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = tmp_path / "url"
    key = use_key(tmp_path, monkeypatch, "key")
    save(url, 1)
    save(url, 2)
    commits = {}
    for step in (1, 2):
        commits[step] = url / RUN / f"step-{step:010d}" / "COMMIT.json"
    genuine = commits[2].read_text()
    assert key.read_text() not in genuine
    change_commit(commits[2], created=0)
    assert load_step(url) == 1
    commits[2].write_text(commits[1].read_text())
    change_commit(commits[2], step=2)
    assert load_step(url) == 1
    commits[2].write_text(genuine)
    assert load_step(url) == 2


def read_log(caplog: pytest.LogCaptureFixture) -> str:
    """Returns the lines since the last call."""
    text = caplog.text
    caplog.clear()
    return text


@pytest.mark.process
def test_deleted_commits_are_reported_once_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = tmp_path / "url"
    for step in range(1, 6):
        save(url, step, keep=1 if step < 3 else 3)
    assert list_committed(url, RUN) == [5, 4, 3]
    assert "were deleted" not in read_log(caplog), "retention is no loss"
    shutil.rmtree(url / RUN / "step-0000000005")
    save(url, 6)
    output = read_log(caplog)
    assert "restored step 4" in output
    assert "kept together with step 4 were deleted: 1, maybe newer ones too" in output
    save(url, 7)
    assert "were deleted" not in read_log(caplog), "it is reported once"


@pytest.mark.parametrize("content", [None, b"short"])
def test_unusable_key_is_refused_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes | None,
) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    monkeypatch.setenv(ENV_KEY_FILE, str(tmp_path / "key"))
    with pytest.raises(InputError, match="key") as caught:
        Checkpointer(
            str(tmp_path / "url"),
            {"w": torch.ones(1)},
            run=RUN,
        )
    assert "short" not in str(caught.value)
    assert not (tmp_path / "url").exists()
