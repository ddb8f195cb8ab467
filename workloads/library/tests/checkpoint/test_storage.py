"""Tests the behavior of every store that checkpoints rely on."""

import errno
import os
import random
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from google.auth import credentials, exceptions
from google.auth.transport import Response

from holdfast.checkpoint import Tuning
from holdfast.checkpoint.errors import AlreadyExists, Denied, NotFound, StorageError, Transient
from holdfast.checkpoint.format.commit import committed_steps
from holdfast.checkpoint.ranks import on_every_rank
from holdfast.checkpoint.stores.factory import open_storage, reliable_storage
from holdfast.checkpoint.stores.gcs import GcsStorage
from holdfast.checkpoint.stores.local import LocalStorage
from holdfast.checkpoint.stores.storage import Storage, crc32c, read_object
from holdfast.checkpoint.stores.storage import put_new as put
from holdfast.support.distribution import install_command
from holdfast.support.errors import InputError, Later
from holdfast.vocabulary.exit_codes import EXIT_RETRY
from workloads.library.tests.checkpoint.made import alone

pytestmark = pytest.mark.process


@pytest.fixture(params=["local", "gcs", "gcs-moves"])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Storage:
    """`gcs-moves`: a bucket that moves objects in one request, as that of Google does."""
    if request.param == "local":
        return open_storage(f"file://{tmp_path}/store")
    if request.param == "gcs-moves":
        bucket = request.getfixturevalue("bucket")
        proxy = request.getfixturevalue("proxy")
        monkeypatch.setattr(GcsStorage, "_copy_and_delete", None)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.env["STORAGE_EMULATOR_HOST"])
        return open_storage(f"gs://{bucket}/some/prefix")
    return open_storage(f"gs://{request.getfixturevalue('bucket')}/some/prefix")


def test_object_is_read_whole_and_in_part_but_not_over_a_limit(storage: Storage) -> None:
    data = os.urandom(3 << 20)
    put(storage, "run/a/one.bin", data)
    assert storage.stat("run/a/one.bin").bytes == len(data)
    assert (
        read_object(
            storage,
            "run/a/one.bin",
            limit=1 << 30,
        )
        == data
    )
    part = bytearray(1000)
    storage.read_into("run/a/one.bin", 12345, memoryview(part))
    assert part == data[12345:13345]
    with pytest.raises(EOFError, match="more than 10"):
        read_object(storage, "run/a/one.bin", limit=10)
    with pytest.raises(EOFError):
        storage.read_into(
            "run/a/one.bin",
            len(data) - 1,
            memoryview(bytearray(9)),
        )
    with pytest.raises(NotFound):
        storage.stat("run/absent")
    with pytest.raises(NotFound):
        storage.read_into("run/absent", 0, memoryview(bytearray(1)))


def test_name_keeps_its_first_content(storage: Storage) -> None:
    put(storage, "run/x", b"first")
    with pytest.raises(AlreadyExists):
        put(storage, "run/x", b"second")
    assert read_object(storage, "run/x", limit=100) == b"first"


def test_move_keeps_the_content_and_frees_the_old_name(storage: Storage) -> None:
    put(storage, "run/drafts/a", b"content")
    put(storage, "run/step/0", b"shard")
    storage.move("run/drafts/a", "run/step/commit")
    assert read_object(storage, "run/step/commit", limit=100) == b"content"
    assert list_names(storage, "") == ["run/step/0", "run/step/commit"]


def test_move_needs_its_source_and_replaces_only_what_it_may(storage: Storage) -> None:
    put(storage, "run/drafts/a", b"first")
    put(storage, "run/drafts/b", b"second")
    storage.move("run/drafts/a", "run/commit")
    with pytest.raises(AlreadyExists):
        storage.move("run/drafts/b", "run/commit")
    with pytest.raises(NotFound):
        storage.move("run/drafts/a", "run/commit", replace=True)
    assert read_object(storage, "run/commit", limit=100) == b"first"
    storage.move("run/drafts/b", "run/commit", replace=True)
    assert read_object(storage, "run/commit", limit=100) == b"second"
    for target in ("run/commit", "run/other"):
        with pytest.raises(NotFound):
            storage.move("run/drafts/b", target)
    assert list_names(storage, "") == ["run/commit"]


@pytest.mark.parametrize("storage", ["local", "gcs-moves"], indirect=True)
def test_object_is_either_moved_or_deleted(storage: Storage) -> None:
    """The first writer wins, and an object that was deleted appears under no other name."""
    for number in range(20):
        source = f"run/drafts/{number}"
        target = f"run/commit-{number}"
        put(storage, source, b"x")
        with ThreadPoolExecutor(2) as pool:
            deletion = pool.submit(storage.delete, source)
            move = pool.submit(storage.move, source, target)
        deletion.result()
        is_moved = move.exception() is None
        assert is_moved or isinstance(move.exception(), NotFound)
        assert list_names(storage, "run") == [target] * is_moved
        storage.delete(target)


def test_exactly_one_concurrent_writer_wins(storage: Storage) -> None:
    def write(number: int) -> bool:
        try:
            put(storage, "run/race", b"%d" % number)
        except AlreadyExists:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(write, range(8)))
    assert results.count(True) == 1
    winner = results.index(True)
    assert read_object(storage, "run/race", limit=10) == b"%d" % winner


def test_listing_stays_below_its_prefix(storage: Storage) -> None:
    for name in ("run/step-1/a", "run/step-1/b/c", "run/step-10/a", "run2/a"):
        put(storage, name, b"x")
    assert list_names(storage, "run/step-1") == ["run/step-1/a", "run/step-1/b/c"]
    assert list_names(storage, "") == [
        "run/step-1/a",
        "run/step-1/b/c",
        "run/step-10/a",
        "run2/a",
    ]
    assert list_names(storage, "nothing") == []


def list_names(storage: Storage, prefix: str) -> list[str]:
    return sorted(stat.name for stat in storage.list(prefix))


def test_checksum_is_the_one_that_buckets_compute() -> None:
    """Every description of CRC-32C gives this check value for these nine digits."""
    assert crc32c(memoryview(bytearray(b"123456789"))) == "e3069283"


def test_deleting_twice_succeeds_and_frees_the_name(storage: Storage) -> None:
    put(storage, "run/gone", b"1")
    storage.delete("run/gone")
    storage.delete("run/gone")
    assert not list(storage.list("run"))
    put(storage, "run/gone", b"2")


def test_folder_removed_by_a_concurrent_delete_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage.open(str(tmp_path))
    mkdir = os.mkdir
    raced_paths: list[str] = []

    def race(path: str | Path, *mode: int) -> None:
        """Report once that the folder exists, although it does not exist afterwards."""
        if not raced_paths and Path(path).name == "attempt":
            raced_paths.append(str(path))
            raise FileExistsError(errno.EEXIST, "File exists")
        mkdir(path, *mode)

    monkeypatch.setattr(os, "mkdir", race)
    put(storage, "run/attempt/0", b"x")
    assert raced_paths
    assert list_names(storage, "run") == ["run/attempt/0"]


@pytest.mark.parametrize(("code", "kind"), [(errno.EIO, Transient), (errno.EACCES, Denied)])
def test_folder_that_cannot_be_listed_is_not_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[StorageError]
) -> None:
    """A run without checkpoints starts at step 0."""
    storage = LocalStorage.open(str(tmp_path))
    put(storage, "run/step-1/COMMIT.json", b"x")
    scan = os.scandir

    def fail(path: str | Path) -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "step-1":
            raise OSError(code, os.strerror(code), str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(kind, match="run"):
        list(storage.list("run"))


@pytest.mark.parametrize("path", ["~/runs", "runs#1", "a%20b", "runs?x"])
def test_reader_finds_the_folder_that_a_writer_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    put(reliable_storage(path, Tuning(), create=True), "run/x", b"x")
    assert list_names(reliable_storage(path, Tuning()), "") == ["run/x"]


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/x",
        "a/../../x",
        "..",
        "a//b",
        "%2e%2e/x",
        "a/%2f",
        ".x",
        "a\\..\\b",
        "",
        "a\n",
        "~",
        "C:",
        "é",
        "\0",
    ],
)
def test_no_name_leaves_its_prefix(storage: Storage, name: str) -> None:
    with pytest.raises(InputError, match="leaves its prefix"):
        put(storage, name, b"x")
    assert not list(storage.list(""))


@pytest.mark.parametrize(
    "url",
    [
        "nonsense://b/x",
        "http://host/x",
        "file://host/x",
        "",
        "file://",
        "gs://",
        "gs://[x",
        "sftp://me:hunter2@host",
    ],
)
def test_url_with_an_unknown_form_or_a_password_is_refused(url: str) -> None:
    message = "holds a password" if "@" in url else "unknown form"
    with pytest.raises(InputError, match=message) as refusal:
        open_storage(url)
    assert "hunter2" not in str(refusal.value)


def test_missing_store_package_is_refused_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    with pytest.raises(InputError) as refusal:
        open_storage("gs://b/x")
    assert refusal.value.fix == install_command("gcs")


def test_missing_bucket_and_unusable_folder_are_refused_at_once(
    bucket: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for url in (f"gs://{bucket}-not/x", str(tmp_path / "file" / "below")):
        with pytest.raises(InputError, match="cannot be used"):
            open_storage(url)


def test_killed_writer_leaves_nothing_that_is_listed(tmp_path: Path) -> None:
    storage = LocalStorage.open(str(tmp_path))
    (tmp_path / ".incoming" / "half").write_bytes(b"half")
    assert not list(storage.list(""))
    os.utime(tmp_path / ".incoming" / "half", (0, 0))
    LocalStorage.open(str(tmp_path))
    assert not list((tmp_path / ".incoming").iterdir())


def test_unreachable_store_at_the_start_asks_for_another_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        nowhere = f"http://127.0.0.1:{probe.getsockname()[1]}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", nowhere)
    tuning = Tuning(retry_s=0.2, request_s=1.0)
    random_state = random.getstate()
    threads = set(threading.enumerate())

    def list_steps() -> list[int]:
        storage = reliable_storage("gs://bucket/runs", tuning, create=True)
        return committed_steps(storage, "run")

    with pytest.raises(Later) as refusal:
        on_every_rank(alone(), list_steps)
    assert refusal.value.code == EXIT_RETRY
    assert not set(threading.enumerate()) - threads, "a thread of the client still retries"
    assert random.getstate() == random_state, "Python's own stream belongs to the training"


class _WithoutToken(credentials.Credentials):
    """Credentials of a pod whose metadata server gives no token."""

    def __init__(self, *answer: object) -> None:
        super().__init__()
        self._answer = answer

    def refresh(self, request: Any) -> None:
        error = exceptions.TransportError("no token", *self._answer)
        raise exceptions.RefreshError(error) from error


class _Answer(Response):
    def __init__(self, status: HTTPStatus) -> None:
        self._status = status

    @property
    def status(self) -> int:
        return self._status

    @property
    def headers(self) -> dict[str, str]:
        return {}

    @property
    def data(self) -> bytes:
        return b""


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ([], Transient),
        ([_Answer(HTTPStatus.BAD_GATEWAY)], Transient),
        ([_Answer(HTTPStatus.FORBIDDEN)], Denied),
    ],
)
def test_request_is_tried_again_until_the_metadata_server_is_up(
    answer: list[object], kind: type[StorageError]
) -> None:
    """That of GKE takes some seconds to answer a new pod."""
    from google.cloud import storage as gcs

    client = gcs.Client(project="p", credentials=_WithoutToken(*answer))
    storage = GcsStorage(
        client,
        "bucket",
        "",
        1.0,
    )
    with pytest.raises(StorageError) as refusal:
        storage.stat("run/x")
    assert type(refusal.value) is kind
    with pytest.raises(StorageError) as refusal:
        put(storage, "run/x", b"x")
    assert type(refusal.value) is kind
