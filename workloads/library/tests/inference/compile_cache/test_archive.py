"""Tests of archives of compiled kernels: what is stored, what is restored, what is refused."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.errors import NotFound
from holdfast.checkpoint.stores import LocalStorage, put_new
from holdfast.inference.compile_cache import index as archive
from holdfast.inference.compile_cache import storing
from holdfast.inference.compile_cache.index import SCHEMA, DamagedArchive, decode
from holdfast.inference.compile_cache.restoring import fetch, restore
from holdfast.inference.compile_cache.storing import Changing, Keeper, list_files, store
from holdfast.vocabulary.serving import CACHE_PROVEN, CACHE_UNTRIED

KEY = "0f3a"
FILES = {
    "vllm/torch_compile_cache/a/graph.py": b"graph" * 1000,
    "vllm/torch_compile_cache/a/.lock": b"",
    "triton/b/kernel.so": bytes(range(256)) * 8,
}
DIGEST = "0" * 64


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage.open(str(tmp_path / "bucket"))


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """Returns the caches of an engine that has compiled."""
    return write_files(tmp_path / "engine")


@pytest.fixture
def replica(tmp_path: Path) -> Path:
    """Returns the empty caches of a later replica."""
    folder = tmp_path / "replica"
    folder.mkdir()
    return folder


def write_files(folder: Path) -> Path:
    for name, data in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def read_files(folder: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for file in list_files(folder):
        files[file.path] = (folder / file.path).read_bytes()
    return files


def list_names(storage: LocalStorage) -> list[str]:
    return sorted(stat.name for stat in storage.list(""))


@pytest.mark.parametrize("part_bytes", [700, 8 << 20])
def test_files_come_back_as_they_were(
    part_bytes: int,
    storage: LocalStorage,
    engine: Path,
    replica: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storing, "PART_BYTES", part_bytes)
    monkeypatch.setattr(storing, "_PIECE_BYTES", 5)
    store(storage, KEY, engine, list_files(engine))
    restore(storage, KEY, replica)
    assert read_files(replica) == FILES


def test_the_first_replica_wins(storage: LocalStorage, engine: Path, replica: Path) -> None:
    store(storage, KEY, engine, list_files(engine))
    names = list_names(storage)
    (engine / "triton/late").write_bytes(b"late")
    store(storage, KEY, engine, list_files(engine))
    assert list_names(storage) == names, "the second one leaves no part"
    restore(storage, KEY, replica)
    assert read_files(replica) == FILES


def test_another_key_is_not_read(storage: LocalStorage, engine: Path, replica: Path) -> None:
    store(storage, KEY, engine, list_files(engine))
    with pytest.raises(NotFound):
        restore(storage, "0f3b", replica)
    assert not read_files(replica)


def test_links_and_foreign_folders_are_not_stored(
    storage: LocalStorage, engine: Path, replica: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (engine / "triton/link").symlink_to(secret)
    (engine / "vllm/folder").symlink_to(tmp_path)
    (engine / "other").mkdir()
    (engine / "other/file").write_text("x")
    store(storage, KEY, engine, list_files(engine))
    restore(storage, KEY, replica)
    assert read_files(replica) == FILES


def test_changing_files_are_not_stored(storage: LocalStorage, engine: Path) -> None:
    files = list_files(engine)
    (engine / "vllm/torch_compile_cache/a/graph.py").write_bytes(b"torn")
    with pytest.raises(Changing):
        store(storage, KEY, engine, files)
    assert not list_names(storage)


def test_large_caches_are_not_stored(
    storage: LocalStorage, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "MAX_BYTES", 1000)
    store(storage, KEY, engine, list_files(engine))
    assert not list_names(storage)


def damage_part(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("target", ["index", "part"])
@pytest.mark.parametrize("harm", [damage_part, shorten, Path.unlink])
def test_damaged_archives_leave_the_caches_empty(
    target: str,
    harm: Callable[[Path], None],
    storage: LocalStorage,
    engine: Path,
    replica: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store(storage, KEY, engine, list_files(engine))
    folder = tmp_path / "bucket" / KEY
    path = folder / "index" if target == "index" else next(folder.glob("*/0000"))
    harm(path)
    caplog.clear()
    fetch(str(tmp_path / "bucket"), KEY, replica, within_s=60)
    assert not read_files(replica)
    assert len(caplog.records) == 1


def encode(document: Any) -> bytes:
    text = json.dumps(document).encode()
    return sha256(text).hexdigest().encode() + b"\n" + text


def make_document(path: object = "vllm/a", size: object = 3, part: object = None) -> Any:
    part = part or ["0123456789abcdef/0000", 3, DIGEST]
    return {"schema": SCHEMA, "files": [[path, size]], "parts": [part]}


PATHS = (
    "/etc/passwd",
    "../vllm/a",
    "vllm/../../a",
    "vllm/./a",
    "vllm//a",
    "vllm",
    "vllm/",
    "other/a",
    "vllm/a\nb",
    "vllm/" + "a" * 1000,
    7,
)
PARTS = (
    ["../../other/0000", 3, DIGEST],
    ["0123456789abcdef/0000", 0, DIGEST],
    ["0123456789abcdef/0000", 1 << 40, DIGEST],
    ["0123456789abcdef/0000", 3, "00"],
    ["0123456789abcdef/0000", 3],
)
DOCUMENTS = (
    [],
    {},
    {"schema": SCHEMA},
    make_document() | {"schema": "another"},
    make_document() | {"files": []},
    make_document(size=-1),
    make_document(size=4),
    make_document(size=1 << 40),
    *(make_document(path) for path in PATHS),
    *(make_document(part=part) for part in PARTS),
)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_hostile_indexes_are_refused(document: Any) -> None:
    assert decode(encode(make_document()))
    with pytest.raises(DamagedArchive):
        decode(encode(document))


def test_too_many_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_FILES", 0)
    with pytest.raises(DamagedArchive):
        decode(encode(make_document()))


def test_an_index_names_each_file_once(
    storage: LocalStorage, replica: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = b"abc"
    part = ["0123456789abcdef/0000", len(data), sha256(data).hexdigest()]
    document = make_document(size=1, part=part)
    document["files"] = [["vllm/a", 1], ["vllm/a", 1], ["vllm/a/b", 1]]
    put_new(storage, f"{KEY}/{part[0]}", data)
    put_new(storage, f"{KEY}/index", encode(document))
    fetch(str(tmp_path / "bucket"), KEY, replica, within_s=60)
    assert not read_files(replica)
    assert len(caplog.records) == 1


def test_a_killed_fetch_is_not_tried_again(
    storage: LocalStorage, engine: Path, replica: Path, tmp_path: Path
) -> None:
    store(storage, KEY, engine, list_files(engine))
    (replica / CACHE_UNTRIED).mkdir()
    fetch(str(tmp_path / "bucket"), KEY, replica, within_s=60)
    assert not read_files(replica)


def test_a_folder_that_cannot_be_made_costs_one_line(
    storage: LocalStorage, engine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store(storage, KEY, engine, list_files(engine))
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "compiled"):
        caplog.clear()
        fetch(str(tmp_path / "bucket"), KEY, folder, within_s=60)
        assert len(caplog.records) == 1


def make_keeper(engine: Path, url: str, waits: list[float], ready_after: int = 0) -> Keeper:
    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return False

    return Keeper(
        url=url,
        key=KEY,
        folder=engine,
        settle_s=10.0,
        is_ready=lambda: len(waits) >= ready_after,
        wait=wait,
    )


def test_caches_are_stored_once_the_engine_is_ready(
    storage: LocalStorage, engine: Path, replica: Path, tmp_path: Path
) -> None:
    waits: list[float] = []
    make_keeper(engine, str(tmp_path / "bucket"), waits, ready_after=3).run()
    assert waits == [1.0, 1.0, 1.0, 10.0]
    assert (engine / CACHE_PROVEN).exists()
    restore(storage, KEY, replica)
    assert read_files(replica) == FILES


def test_a_killed_keeper_does_not_store_again(
    storage: LocalStorage, engine: Path, tmp_path: Path
) -> None:
    (engine / CACHE_PROVEN).touch()
    make_keeper(engine, str(tmp_path / "bucket"), []).run()
    assert not list_names(storage)


def test_a_store_that_cannot_be_used_costs_one_line(
    engine: Path, replica: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    make_keeper(engine, str(file), []).run()
    assert len(caplog.records) == 1
    fetch(str(file), KEY, replica, within_s=60)
    assert len(caplog.records) == 2
    assert not read_files(replica)
