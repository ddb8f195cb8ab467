import errno
import tracemalloc
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.support.errors import InputError
from holdfast.training.trainer.config import TrainConfig
from holdfast.training.trainer.data import Corpus, Samples, seed_draws
from holdfast.training.trainer.progress import Progress

TEXT = torch.arange(1000, dtype=torch.int64).remainder(251).to(torch.uint8)


def samples(seed: int = 3) -> Samples:
    return Samples(text=TEXT, context=10, seed=seed)


def test_the_default_corpus_is_the_same_at_every_read() -> None:
    first = Corpus.read(None)
    second = Corpus.read(None)
    assert first.fingerprint == second.fingerprint
    assert torch.equal(first.text, second.text)
    assert b"import" in bytes(first.text.numpy())
    assert len(Corpus.read(None, max_bytes=70).text) == 70


def test_the_fingerprint_notices_every_change(tmp_path: Path) -> None:
    states = [
        {"a": "one"},
        {"a": "one", "b": "two"},
        {"a": "onf", "b": "two"},
        {"a": "onf", "c": "two"},
        {"a": "onf"},
    ]
    fingerprints = set[str]()
    for number, files in enumerate(states):
        (tmp_path / str(number)).mkdir()
        for name, text in files.items():
            (tmp_path / str(number) / name).write_text(text)
        fingerprints.add(Corpus.read(tmp_path / str(number)).fingerprint)
    assert len(fingerprints) == len(states)


def test_a_folder_without_text_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "image.bin").write_bytes(b"\0\1\2")
    (tmp_path / "empty.txt").touch()
    with pytest.raises(InputError, match="contains no text"):
        Corpus.read(tmp_path)
    with pytest.raises(InputError, match="which is not a folder"):
        Corpus.read(tmp_path / "nowhere")
    with pytest.raises(InputError, match="shorter than one sample"):
        Samples(text=TEXT[:5], context=10, seed=0)


def test_a_large_file_is_read_no_further_than_the_limit(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_bytes(b"word " * (4 << 20))
    tracemalloc.start()
    try:
        corpus = Corpus.read(tmp_path, max_bytes=1000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(corpus.text) == 1000
    assert peak_bytes < 1 << 20


def test_hidden_folders_are_not_read(tmp_path: Path) -> None:
    """The kubelet mounts a ConfigMap through a hidden folder with the time in its name."""
    fingerprints = set[str]()
    for number, version in enumerate(("..2026_12_01_05_31", "..2026_12_01_09_47")):
        mount = tmp_path / str(number)
        (mount / version).mkdir(parents=True)
        (mount / version / "book.txt").write_text("one text")
        (mount / "..data").symlink_to(version)
        (mount / "book.txt").symlink_to("..data/book.txt")
        corpus = Corpus.read(mount)
        assert bytes(corpus.text.numpy()) == b"one text"
        fingerprints.add(corpus.fingerprint)
    assert len(fingerprints) == 1


def test_a_file_that_cannot_be_read_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lost+found").mkdir()

    def refuse(folder: Path) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(InputError, match=f"{tmp_path}: Permission denied"):
        Corpus.read(tmp_path)


def test_each_epoch_is_a_new_stateless_permutation() -> None:
    order = samples()
    count = len(order)
    first = [order.index(position) for position in range(count)]
    second = []
    for position in range(count, 2 * count):
        second.append(order.index(position))
    assert sorted(first) == sorted(second) == list(range(count))
    assert first != second
    stateless = []
    for position in range(0, 2 * count, 37):
        stateless.append(samples().index(position))
    assert stateless == (first + second)[::37]


@settings(max_examples=30)
@given(consumed=st.integers(0, 300), ranks=st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_ranks_share_the_same_samples_for_any_world_size(consumed: int, ranks: int) -> None:
    whole, following = samples().batch(consumed, 12)
    assert torch.equal(whole[:, 1:], following[:, :-1]), "the target is the byte that follows"
    parts = []
    for rank in range(ranks):
        parts.append(samples().batch(consumed + rank * (12 // ranks), 12 // ranks)[0])
    assert torch.equal(torch.cat(parts), whole)


def test_seeded_draws_equal_torchs_without_preparing_accelerators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    monkeypatch.setattr(
        "traceback.format_stack", lambda: pytest.fail("a call stack in each shard of each step")
    )
    seed_draws(7, torch.device("cpu"))
    assert torch.equal(torch.rand(3), expected)


def test_progress_continues_notes_a_resize_and_rejects_another_run() -> None:
    written, read = (
        Progress(TrainConfig(checkpoints="x", ranks=ranks), fingerprint="f") for ranks in (4, 2)
    )
    written.advance()
    read.load_state_dict(written.state_dict())
    assert read.consumed == 16
    assert read.resized_from == 4
    for changed in ("seed", "data", "model"):
        with pytest.raises(InputError, match=f"written with another value of {changed}"):
            read.load_state_dict(written.state_dict() | {changed: "other"})
