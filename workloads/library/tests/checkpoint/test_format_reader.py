"""The reader of the examples: NumPy alone, the same bits as the library, and no damaged byte."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.checkpoint import load_tensors
from holdfast.checkpoint.stores.storage import crc32c
from holdfast.training import examples
from workloads.library.tests.checkpoint import direct
from workloads.library.tests.checkpoint.jobs import RUN

READER = Path(examples.__path__[0]) / "read_holdfast.py"
FORBIDDEN = ("holdfast", "torch", "google_crc32c", "workloads")
# Runs a program as a script, in a process that cannot import this library or PyTorch.
PROGRAM = f"""
import runpy, sys

class Forbid:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {FORBIDDEN}:
            raise ImportError(f"{{name}} is forbidden here")

sys.meta_path.insert(0, Forbid())
script, out, *sys.argv = sys.argv[1:]
names = runpy.run_path(script)
step, tensors, values = names["read"](*sys.argv)
import numpy as np
np.savez(out, **{{key.replace("/", "|"): array.view(f"u{{array.itemsize}}") if array.dtype.kind
  not in "V" and array.ndim and array.itemsize < 16 else array for key, array in tensors.items()}})
print(step)
"""


@pytest.fixture
def reader(tmp_path: Path) -> Path:
    """A copy of the reader in a folder without anything else."""
    return Path(shutil.copy(READER, tmp_path / "reader.py"))


def read(
    reader: Path,
    folder: Path,
    run: str,
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-I",
        "-c",
        PROGRAM,
        reader,
        reader.with_name("out.npz"),
    ]
    return subprocess.run(
        [*map(str, command), str(folder), run],
        check=False,
        capture_output=True,
        text=True,
        cwd=reader.parent,
    )


def test_reader_is_100_lines_on_numpy_alone() -> None:
    lines = READER.read_text().splitlines()
    assert len(lines) <= 100
    imported = set()
    for line in lines:
        if line.startswith(("import ", "from ")):
            imported.add(line.split()[1])
    assert imported - set(sys.stdlib_module_names) == {"numpy"}


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, (1 << 20) + 3])
def test_checksums_equal_those_that_are_stored(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(READER.parent)
    import read_holdfast  # pyright: ignore[reportMissingImports]

    data = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8)
    assert read_holdfast.crc32c(data) == crc32c(memoryview(bytearray(data)))


@pytest.mark.process
def test_reader_joins_two_ranks(reader: Path, url: Path) -> None:
    result = read(reader, url, RUN)
    assert result.returncode == 0, result.stderr
    step, expected = load_tensors(url, RUN)
    assert result.stdout.strip() == str(step)
    arrays = np.load(reader.with_name("out.npz"))
    compared = 0
    for key, tensor in expected.items():
        # Random streams differ between ranks.
        if not key.startswith("__"):
            assert arrays[key.replace("/", "|")].tobytes() == tensor.numpy().tobytes(), key
            compared += 1
    assert compared > 8


@pytest.mark.filterwarnings("ignore")
def test_reader_reads_every_dtype_and_version_2(reader: Path, tmp_path: Path) -> None:
    tensors = {
        "bfloat16": torch.arange(6.0).bfloat16().view(2, 3),
        "complex128": torch.randn(3, dtype=torch.complex128),
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
    }
    direct.save(tmp_path / "url", {"entry": {**tensors, "kind": torch.float16}}, 3)
    result = read(reader, tmp_path / "url", direct.RUN)
    assert result.returncode == 0, result.stderr
    arrays = np.load(reader.with_name("out.npz"))
    for name, tensor in tensors.items():
        array = arrays[f"entry|{name}"]
        assert array.shape == tuple(tensor.shape)
        assert array.tobytes() == bytes(tensor.flatten().view(torch.uint8).tolist()), name


def damage(folder: Path) -> Iterator[str]:
    """Damages one object after the other, and repairs it again. Yields its name."""
    for path in sorted(folder.rglob("step-0000000006/**/*")):
        if path.is_dir():
            continue
        data = path.read_bytes()
        middle = len(data) // 2
        flipped = bytes([data[middle] ^ 1])
        damaged = data[:middle] + flipped + data[middle + 1 :]
        path.write_bytes(damaged)
        yield path.name
        path.write_bytes(data[:-1])
        yield path.name
        path.write_bytes(data)


@pytest.mark.process
def test_reader_refuses_damage(url: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(READER.parent)
    import read_holdfast  # pyright: ignore[reportMissingImports]

    names = set()
    for name in damage(url):
        names.add(name)
        with pytest.raises(ValueError, match="damaged"):
            read_holdfast.read(url, RUN, 6)
    assert {"COMMIT.json", "rank-00001.json"} < names
