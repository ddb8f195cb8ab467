"""A source folder is packed to the same digest anywhere, and what must stay is refused."""

import os
import socket
import subprocess
import sys
import tarfile
import time
from io import BytesIO
from pathlib import Path

import pytest

from holdfast.jobs.render.programs import make_program
from holdfast.jobs.source import archive, folder, unpack
from holdfast.support.errors import InputError

PEM = "-----BEGIN PRIVATE KEY-----\\n" + "A" * 64


def make_folder(root: Path) -> Path:
    (root / "pkg").mkdir(parents=True)
    (root / "train.py").write_text("import pkg.model\n")
    (root / "pkg/model.py").write_text("SIZE = 3\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o700)
    (root / "latest.py").symlink_to("pkg/model.py")
    (root / "pkg/__pycache__").mkdir()
    (root / "pkg/__pycache__/model.pyc").write_text("x")
    return root


def test_equal_content_has_an_equal_digest_anywhere(tmp_path: Path) -> None:
    first = make_folder(tmp_path / "a")
    second = make_folder(tmp_path / "b/c")
    for path in second.rglob("*.py"):
        os.utime(path, (1, 1))
    (second / "train.py").chmod(0o664)
    packed = archive.pack(first)
    assert packed == archive.pack(second)
    with tarfile.open(fileobj=BytesIO(packed.data)) as tar:
        names = []
        for member in tar:
            names.append((member.name, member.mode, member.mtime, member.uid))
    assert names == [
        ("latest.py", 0o644, 0, 0),
        ("pkg/model.py", 0o644, 0, 0),
        ("run.sh", 0o755, 0, 0),
        ("train.py", 0o644, 0, 0),
    ]
    (second / "train.py").write_text("import pkg.model  # changed\n")
    assert archive.pack(second).digest != packed.digest
    (first / "run.sh").chmod(0o600)
    assert archive.pack(first).digest != packed.digest


def test_a_pod_unpacks_it_and_refuses_another_archive(tmp_path: Path) -> None:
    """The module is run by its text, as a pod of any image does."""
    packed = archive.pack(make_folder(tmp_path / "code"))
    stored = tmp_path / "source.tar.gz"
    stored.write_bytes(packed.data)
    target = tmp_path / "source"
    script = make_program(unpack)
    command = [
        sys.executable,
        "-I",
        "-c",
        script,
        str(stored),
        packed.digest,
        str(target),
    ]
    for _ in range(2):  # a container may start a second time
        subprocess.run(command, check=True, capture_output=True)
    assert (target / "pkg/model.py").read_text() == "SIZE = 3\n"
    assert os.access(target / "run.sh", os.X_OK)
    assert (target / "latest.py").readlink() == Path("pkg/model.py")
    command[-2] = "0" * 64
    refused = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 1
    assert "expected sha256:000" in refused.stderr


@pytest.mark.parametrize(
    "name", [".env", "pkg/.env.prod", "key.pem", "id_rsa", "service-account-ci.json", ".ENV"]
)
def test_a_secret_is_packed_only_if_it_is_named(name: str, tmp_path: Path) -> None:
    root = make_folder(tmp_path)
    (root / name).write_text("TOKEN=hunter2")
    with pytest.raises(InputError, match="looks like a secret") as error:
        archive.pack(root)
    assert name in error.value.got
    assert name in error.value.fix
    assert "hunter2" not in str(error.value)
    assert archive.pack(root, [name]).file_count == 5
    (root / ".gitignore").write_text(name.rpartition("/")[2] + "\n")
    assert archive.pack(root).file_count == 5  # with .gitignore instead


def test_private_keys_are_refused_whatever_the_file_is_called(tmp_path: Path) -> None:
    root = make_folder(tmp_path)
    (root / "config.json").write_text(f'{{"private_key": "{PEM}"}}')
    with pytest.raises(InputError, match="private key") as error:
        archive.pack(root)
    assert "AAAA" not in str(error.value)
    assert archive.pack(root, ["config.json"]).file_count == 5
    (root / ".env.example").write_text("TOKEN=\n")
    (root / "config.json").write_text("-----BEGIN PRIVATE KEY----- is how one begins")
    assert archive.pack(root).file_count == 6


def list_generated(root: Path, included: str) -> list[str]:
    """Returns the files of the ignored folder that are packed."""
    names: list[str] = []
    for file in folder.list_files(root, [included]):
        if file.name.startswith("generated"):
            names.append(file.name)
    return names


def test_an_ignored_file_is_packed_if_it_is_named(tmp_path: Path) -> None:
    root = make_folder(tmp_path)
    (root / ".gitignore").write_text("generated/\n")
    (root / "generated/deep").mkdir(parents=True)
    for name in ("generated/deep/a.py", "generated/deep/b.py", "generated/c.py"):
        (root / name).touch()
    assert list_generated(root, "generated/deep/a.py") == ["generated/deep/a.py"]
    assert len(list_generated(root, "generated/deep")) == 2
    for wrong in ("missing.py", "../x", "/etc/passwd", ""):
        with pytest.raises(InputError, match="source_include"):
            folder.list_files(root, [wrong])


def test_links_and_special_files_are_refused(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "code")
    (tmp_path / "outside.py").write_text("x = 1\n")
    for target in ("../outside.py", str(tmp_path / "outside.py"), "nothing.py", "link.py", "/etc"):
        link = root / "link.py"
        link.symlink_to(target)
        with pytest.raises(InputError, match="symbolic link") as error:
            archive.pack(root)
        assert error.value.got.startswith("link.py -> ")
        link.unlink()
    (root / "inside.py").symlink_to(root / "pkg/model.py")  # an absolute path in the folder
    targets: dict[str, str] = {}
    for file in folder.list_files(root):
        targets[file.name] = file.target
    assert targets["inside.py"] == "pkg/model.py"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "s"))
        with pytest.raises(InputError, match="neither a file nor a folder"):
            archive.pack(root)


def test_two_gigabytes_are_refused_without_reading_them(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "code")
    with (root / "weights.bin").open("wb") as file:
        file.truncate(2 << 30)  # sparse: takes no disk, and would take long to read
    start = time.thread_time()
    with pytest.raises(InputError, match="too large") as error:
        archive.pack(root)
    assert "2,048 MiB in all, up to weights.bin" in error.value.got
    assert "256 MiB" in error.value.allowed
    assert time.thread_time() - start < 0.5
    (root / "weights.bin").unlink()
    many = root / "many"
    many.mkdir()
    for number in range(folder.MAX_FILES):
        (many / str(number)).touch()
    with pytest.raises(InputError, match="too large"):
        archive.pack(root)


def test_empty_and_missing_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="nothing to pack"):
        archive.pack(tmp_path / "empty")
    (tmp_path / "file").touch()
    for wrong in ("missing", "file"):
        with pytest.raises(InputError, match="no folder"):
            archive.pack(tmp_path / wrong)
    (tmp_path / "empty/a\nb").touch()
    with pytest.raises(InputError, match="name of a file"):
        archive.pack(tmp_path / "empty")


def test_incompressible_code_does_not_fit_a_config_map(tmp_path: Path) -> None:
    (tmp_path / "small.bin").write_bytes(os.urandom(1000))
    assert archive.pack(tmp_path).fits_config_map
    (tmp_path / "large.bin").write_bytes(os.urandom(archive.MAX_CONFIG_MAP_BYTES))
    assert not archive.pack(tmp_path).fits_config_map
