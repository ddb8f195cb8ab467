"""Import and export, going back to an older step, and branches; and what is refused."""

import errno
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from typer.testing import CliRunner

from holdfast.checkpoint import Checkpointer, load_tensors
from holdfast.checkpoint.cli import app
from holdfast.checkpoint.format import Commit, Manifest, Shard, TensorPart, fence
from holdfast.checkpoint.interchange import foreign_storage, source
from holdfast.checkpoint.interchange.commands import export_checkpoint
from holdfast.checkpoint.interchange.verified_reader import VerifiedReader
from holdfast.checkpoint.restore.reader import Opened, ShardSource, open_step
from holdfast.checkpoint.restore.tensor_loading import read_whole
from holdfast.checkpoint.state.tensors import view_memory
from holdfast.checkpoint.stores.local import LocalStorage
from holdfast.checkpoint.stores.storage import crc32c
from holdfast.support.errors import InputError
from workloads.library.tests.checkpoint import direct
from workloads.library.tests.checkpoint.interchange.layouts import LAYOUTS, check_layouts
from workloads.library.tests.checkpoint.jobs import TUNING, Jobs, list_committed
from workloads.library.tests.checkpoint.process_groups import run as run_group

pytestmark = [pytest.mark.filterwarnings("ignore")]


def make_weights() -> OrderedDict[str, torch.Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).bfloat16()
    return OrderedDict(model.state_dict())


def write_hf(folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    """Writes two files of safetensors with an index."""
    storage = folder / "for-export"
    direct.save(storage, {"model": {**weights}})
    out = folder / "hf"
    from holdfast.checkpoint.interchange import writers

    store = LocalStorage.open(str(storage))
    opened = open_step(store, direct.RUN, 1)
    names = {f"model/{name}": name for name in weights}
    writers.write_hugging_face(out, VerifiedReader(store, opened), opened, names, file_bytes=64)
    return out


def write_dcp(folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    dcp.save({**weights}, checkpoint_id=str(folder / "dcp"))
    return folder / "dcp"


def write_nested_dcp(folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    dcp.save(
        {
            "model": {**weights},
            "step": 3,
        },
        checkpoint_id=str(folder / "dcp"),
    )
    return folder / "dcp"


def write_torch(folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    torch.save({**weights}, folder / "weights.pt")
    return folder / "weights.pt"


def write_nested_torch(folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    torch.save(
        {
            "model": {**weights},
            "epoch": 3,
        },
        folder / "state.pt",
    )
    return folder / "state.pt"


def write_torch_checkpointing(folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    """Writes the layout of torch-checkpointing 0.1.1: a file for each item, and metadata."""
    import pickle  # noqa: TID251  # what the other library writes

    out = folder / "torch-checkpointing"
    out.mkdir()
    torch.save({**weights}, out / "model_0.pt")
    metadata = {
        "metadata": {},
        "world_size": 1,
        "version": "2.0",
    }
    (out / "metadata.pkl").write_bytes(pickle.dumps(metadata))
    return out


WRITERS = {
    "safetensors": write_hf,
    "DCP": write_dcp,
    "nested DCP": write_nested_dcp,
    "torch.save": write_torch,
    "nested torch.save": write_nested_torch,
    "torch-checkpointing": write_torch_checkpointing,
}


def invoke(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    if code == 0 and result.exception:
        raise result.exception
    assert result.exit_code == code
    return result.output


def refuse(*arguments: object) -> InputError:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert isinstance(result.exception, InputError), result.output
    return result.exception


@pytest.mark.parametrize("kind", WRITERS)
def test_other_formats_are_imported_bit_by_bit(tmp_path: Path, kind: str) -> None:
    weights = make_weights()
    source = WRITERS[kind](tmp_path, weights)
    output = invoke("import", source, tmp_path / "url", "--run", "new")
    assert "run new, step 0" in output
    _, tensors = load_tensors(tmp_path / "url", "new", keys=["model/"])
    assert len(tensors) == len(weights)
    for name, tensor in weights.items():
        assert torch.equal(tensors[f"model/{name}"], tensor)
        assert tensors[f"model/{name}"].dtype == tensor.dtype


def test_strided_view_keeps_its_values(tmp_path: Path) -> None:
    base = torch.arange(12.0).view(3, 4)
    torch.save(
        {
            "turned": base.t(),
            "part": base[1:, 2:],
        },
        tmp_path / "views.pt",
    )
    invoke("import", tmp_path / "views.pt", tmp_path / "url", "--run", "new")
    _, tensors = load_tensors(tmp_path / "url", "new")
    assert torch.equal(tensors["model/turned"], base.t())
    assert torch.equal(tensors["model/part"], base[1:, 2:])


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("world", LAYOUTS)
def test_layouts_go_there_and_back(
    jobs: Jobs,
    tmp_path: Path,
    world: int,
) -> None:
    run_group(jobs, tmp_path, world, check_layouts, str(tmp_path), timeout_s=240)


class Touch:
    """Code in a file: it would create a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def spoil_index(folder: Path) -> Path:
    source = write_hf(folder, make_weights())
    next(source.glob("*-00002-*.safetensors")).unlink()
    return source


def spoil_index_path(folder: Path) -> Path:
    source = write_hf(folder, make_weights())
    index = source / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["0.weight"] = "../hf/model-00001-of-00002.safetensors"
    index.write_text(json.dumps(document))
    return source


def duplicate_tensor(folder: Path) -> Path:
    source = write_hf(folder, make_weights())
    (source / "model.safetensors.index.json").unlink()
    first = min(source.glob("*.safetensors"))
    shutil.copy(first, source / "adapter.safetensors")
    return source


def write_safetensors(
    path: Path,
    header: bytes,
    data: bytes,
    length: int | None = None,
) -> Path:
    size = len(header) if length is None else length
    path.write_bytes(struct.pack("<Q", size) + header + data)
    return path


def claim_long_header(folder: Path) -> Path:
    return write_safetensors(folder / "x.safetensors", b"{}", b"", 1 << 62)


def claim_long_tensor(folder: Path) -> Path:
    tensor = {
        "dtype": "F32",
        "shape": [1 << 40],
        "data_offsets": [0, 4 << 40],
    }
    return write_safetensors(folder / "x.safetensors", json.dumps({"w": tensor}).encode(), b"1234")


def claim_short_tensor(folder: Path) -> Path:
    tensor = {
        "dtype": "F32",
        "shape": [2],
        "data_offsets": [0, 4],
    }
    return write_safetensors(folder / "x.safetensors", json.dumps({"w": tensor}).encode(), b"1234")


def repeat_name(folder: Path) -> Path:
    tensor = json.dumps(
        {
            "dtype": "F32",
            "shape": [1],
            "data_offsets": [0, 4],
        }
    )
    header = f'{{"w": {tensor}, "w": {tensor}}}'.encode()
    return write_safetensors(folder / "x.safetensors", header, b"1234")


def hide_code(folder: Path) -> Path:
    torch.save(
        {
            "w": torch.ones(1),
            "code": Touch(folder / "touched"),
        },
        folder / "code.pt",
    )
    return folder / "code.pt"


def hide_code_in_dcp(folder: Path) -> Path:
    import pickle  # noqa: TID251  # what an attacker writes

    source = write_dcp(folder, make_weights())
    (source / ".metadata").write_bytes(pickle.dumps(Touch(folder / "touched")))
    return source


def lose_dcp_file(folder: Path) -> Path:
    source = write_dcp(folder, make_weights())
    (source / "__0_0.distcp").unlink()
    return source


def cut_dcp_file(folder: Path) -> Path:
    source = write_dcp(folder, make_weights())
    file = source / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-100])
    return source


def write_text(folder: Path) -> Path:
    (folder / "notes.txt").write_text("no checkpoint")
    return folder / "notes.txt"


SPOILED: dict[Callable[[Path], Path], str] = {
    spoil_index: "is missing",
    spoil_index_path: "outside of the folder",
    duplicate_tensor: "is in model-00001.* and in|is in adapter.* and in",
    claim_long_header: "a header of",
    claim_long_tensor: "its place holds others",
    claim_short_tensor: "its place holds others",
    repeat_name: "two tensors have one name",
    hide_code: "weights_only|WeightsUnpickler|Weights only|UnpicklingError",
    hide_code_in_dcp: "is not part of an index",
    lose_dcp_file: "is missing",
    cut_dcp_file: "outside of __0_0",
    write_text: "neither safetensors nor",
    lambda folder: folder / "absent": "no such checkpoint",
}


@pytest.mark.parametrize(
    ("spoil", "reason"), [*SPOILED.items()], ids=lambda value: getattr(value, "__name__", value)
)
def test_spoiled_source_is_refused_with_a_fix(
    tmp_path: Path,
    spoil: Callable[[Path], Path],
    reason: str,
) -> None:
    source = spoil(tmp_path)
    error = refuse("import", source, tmp_path / "url", "--run", "new")
    assert re.search(reason, error.got), error.got
    assert error.fix
    assert not (tmp_path / "touched").exists(), "code of the file ran"
    assert list_committed(tmp_path / "url", "new") == []


def test_another_model_is_refused(tmp_path: Path) -> None:
    source = write_dcp(tmp_path, make_weights())
    model = nn.Linear(7, 7)
    with (
        pytest.raises(InputError, match="another model"),
        Checkpointer(
            tmp_path / "url",
            {"model": model},
            run="r",
            start_from=source,
        ),
    ):
        pytest.fail("training began")
    # The run is still unused: its name can begin from the right place.
    assert not any((tmp_path / "url").rglob("COMMIT.json"))


@pytest.mark.parametrize("form", ["hf", "dcp", "file"])
def test_export_over_something_is_refused(tmp_path: Path, form: str) -> None:
    direct.save(tmp_path / "url", {"model": make_weights()})
    out = tmp_path / "out"
    out.mkdir()
    (out / "keep").touch()
    error = refuse("export", tmp_path / "url", "--to", form, "--out", out)
    assert "exists" in error.what
    assert list(out.iterdir()) == [out / "keep"]


def test_damaged_export_leaves_nothing_behind(tmp_path: Path) -> None:
    direct.save(tmp_path / "url", {"model": make_weights()})
    shard = next((tmp_path / "url").rglob("*.bin"))
    data = bytearray(shard.read_bytes())
    data[0] ^= 1
    shard.write_bytes(data)
    for form in ("hf", "dcp", "file"):
        with pytest.raises(InputError, match="no checkpoint that verifies"):
            export_checkpoint(
                LocalStorage.open(str(tmp_path / "url")),
                direct.RUN,
                None,
                "model/",
                tmp_path / "out",
                form,
            )
    assert list(tmp_path.iterdir()) == [tmp_path / "url"]


def save_adapters(url: Path, *adapters: str) -> dict[str, torch.Tensor]:
    """Saves a state with the keys of a PeftModel. Returns the tensors of the first adapter."""
    base = "base_model.model.layers.0.q_proj"
    weights = {f"{base}.base_layer.weight": torch.randn(4, 4)}
    expected: dict[str, torch.Tensor] = {}
    for adapter in adapters:
        for name, shape in (("lora_A", (2, 4)), ("lora_B", (4, 2))):
            weights[f"{base}.{name}.{adapter}.weight"] = torch.randn(shape)
    for name in ("lora_A", "lora_B"):
        layer = f"{base}.{name}"
        expected[f"{layer}.weight"] = weights[f"{layer}.{adapters[0]}.weight"]
    direct.save(url, {"model": weights})
    return expected


def test_adapter_is_exported_as_peft_lays_it_out(tmp_path: Path) -> None:
    expected = save_adapters(tmp_path / "url", "default", "other")
    config = tmp_path / "adapter_config.json"
    config.write_text('{"peft_type": "LORA", "r": 2}')
    arguments = ("export", tmp_path / "url", "--adapter-config", config)
    out = tmp_path / "adapter"
    error = refuse(*arguments, "--out", out)
    assert "default, other" in error.got
    invoke(*arguments, "--adapter", "default", "--out", out)
    assert (out / "adapter_config.json").read_text() == config.read_text()
    invoke("import", out / "adapter_model.safetensors", tmp_path / "again", "--run", "r")
    _, tensors = load_tensors(tmp_path / "again", "r")
    assert len(tensors) == len(expected)
    for name, tensor in expected.items():
        assert torch.equal(tensors[f"model/{name}"], tensor)
    config.write_text("{}")
    assert "peft_type" in refuse(*arguments, "--out", tmp_path / "more").got
    for unknown in ('{"peft_type": "VERA"}', '{"peft_type": "LORA", "bias": "lora_only"}'):
        config.write_text(unknown)
        assert "save_pretrained" in refuse(*arguments, "--out", tmp_path / "more").fix


def train(url: Path, run: str, until: int, **options: Any) -> tuple[int, torch.Tensor]:
    """Returns the step at which the run began, and its last weights."""
    torch.manual_seed(len(run))
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    state = {"model": model, "optimizer": optimizer}
    with Checkpointer(
        url,
        state,
        run=run,
        every=1,
        keep=9,
        tuning=TUNING,
        **options,
    ) as ckpt:
        first = ckpt.step
        for step in range(first, until):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).square().sum().backward()
            optimizer.step()
            ckpt.tick(step + 1)
            ckpt.wait()
    return first, model.weight.detach().clone()


@pytest.mark.process
def test_run_begins_elsewhere_and_resumes_its_own(tmp_path: Path) -> None:
    _, expected = train(tmp_path, "first", 6)
    place = f"{tmp_path}/first@3"
    assert train(tmp_path, "second", 4, start_from=place)[0] == 3
    begun, weights = train(tmp_path, "second", 6, start_from=place)
    assert begun == 4, "its own checkpoint comes first"
    # Random streams come with the state: the branch goes on as the run itself did.
    assert torch.equal(weights, expected)
    for wrong, reason in (("first@77", "no checkpoint of this step"), ("absent", "names no")):
        with pytest.raises(InputError, match=reason):
            train(tmp_path, "third", 4, start_from=f"{tmp_path}/{wrong}")


@pytest.mark.process
def test_branch_and_back_are_commands(tmp_path: Path) -> None:
    _, expected = train(tmp_path, "first", 5)
    invoke("branch", tmp_path, "--run", "first", "--step", 3, "--to", "second")
    assert list_committed(tmp_path, "second") == [3]
    begun, weights = train(tmp_path, "second", 5)
    assert begun == 3
    assert torch.equal(weights, expected)
    assert "has checkpoints" in refuse("branch", tmp_path, "--run", "first", "--to", "second").what
    error = refuse("back", tmp_path, "--run", "first", "--step", 2)
    assert error.got == "steps 5, 4, 3"
    assert "--yes" in error.fix
    before = fence._newest_number(LocalStorage.open(str(tmp_path)), "first")
    output = invoke("back", tmp_path, "--run", "first", "--step", 2, "--yes")
    assert "continues from step 2; deleted steps: 5, 4, 3" in output
    assert list_committed(tmp_path, "first") == [2, 1]
    assert fence._newest_number(LocalStorage.open(str(tmp_path)), "first") == before + 1
    begun, weights = train(tmp_path, "first", 5)
    assert begun == 2
    assert torch.equal(weights, expected)


@pytest.mark.process
def test_commands_print_json_for_scripts(tmp_path: Path) -> None:
    store = tmp_path / "store"
    train(store, "first", 3)
    out = tmp_path / "model.safetensors"
    exported = json.loads(invoke("export", store, "--run", "first", "--out", out, "--json"))
    assert exported["schema"] == "holdfast.export/1"
    assert (exported["step"], exported["out"]) == (3, str(out))
    assert out.stat().st_size > exported["bytes"] > 0 < exported["tensors"]
    branched = json.loads(invoke("branch", store, "--run", "first", "--to", "next", "--json"))
    imported = json.loads(invoke("import", out, store, "--run", "again", "--step", 7, "--json"))
    for copy, run, step in ((branched, "next", 3), (imported, "again", 7)):
        assert copy["schema"] == "holdfast.checkpoint-copy/1"
        assert (copy["url"], copy["run"], copy["step"]) == (str(store), run, step)
        assert copy["bytes"] > 0
    answer = invoke(
        "back",
        store,
        "--run",
        "first",
        "--step",
        2,
        "--yes",
        "--json",
    )
    assert json.loads(answer) == {
        "schema": "holdfast.back/1",
        "url": str(store),
        "run": "first",
        "step": 2,
        "deleted": [3],
    }


@pytest.mark.process
def test_folder_that_was_copied_by_hand_has_a_way_out(tmp_path: Path) -> None:
    _, expected = train(tmp_path, "first", 4)
    shutil.copytree(tmp_path / "first", tmp_path / "copied")
    shutil.rmtree(tmp_path / "first")
    with pytest.raises(InputError, match="branch URL --run copied --to NEW"):
        train(tmp_path, "copied", 5)
    invoke("branch", tmp_path, "--run", "copied", "--to", "second")
    begun, weights = train(tmp_path, "second", 4)
    assert begun == 4
    assert torch.equal(weights, expected)


PROGRAM = """
import sys
from pathlib import Path
import resource
from holdfast.checkpoint.interchange.commands import export_checkpoint, import_checkpoint
from holdfast.checkpoint.interchange import writers
from holdfast.checkpoint.stores.local import LocalStorage
import torch.distributed.checkpoint
import torch._subclasses.fake_tensor

folder = Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
storage = LocalStorage.open(str(folder / "url"))
import_checkpoint(folder / "big.safetensors", storage, "big", entry="model", step=0)
export_checkpoint(storage, "big", None, "model/", folder / "dcp", "dcp")
import_checkpoint(folder / "dcp", storage, "again", entry="model", step=0)
export_checkpoint(storage, "again", None, "model/", folder / "hf", "hf")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
BIG_BYTES = 600 << 20


@pytest.mark.process
@pytest.mark.timeout(300)
def test_memory_does_not_grow_with_the_checkpoint(tmp_path: Path) -> None:
    """One tensor larger than the bound, in and out in both formats."""
    tensor = {
        "dtype": "F32",
        "shape": [BIG_BYTES // 4096, 1024],
        "data_offsets": [0, BIG_BYTES],
    }
    header = json.dumps({"w": tensor}).encode()
    path = write_safetensors(tmp_path / "big.safetensors", header, b"")
    with path.open("r+b") as file:
        file.seek(8 + len(header) + BIG_BYTES // 2)
        file.write(b"middle")
        file.truncate(8 + len(header) + BIG_BYTES)
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            PROGRAM,
            str(tmp_path),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(result.stdout) * 1024 < 300e6, "the goal for 4 GB"
    assert next((tmp_path / "hf").glob("*.safetensors")).stat().st_size > BIG_BYTES


def test_export_needs_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mounted bucket has none, and the export would be lost at its end."""
    direct.save(tmp_path / "runs", {"model": {**make_weights()}})

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    out = tmp_path / "model.safetensors"
    invoke(
        "export",
        tmp_path / "runs",
        "--out",
        out,
    )
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [out.name]


def test_tensor_with_strides_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.arange(2000.0).view(40, 50).t()
    torch.save({"weight": weight}, tmp_path / "state.pt")
    monkeypatch.setattr(foreign_storage, "READ_BYTES", 64)
    read_file = source._read_file
    lengths: list[int] = []

    def count(path: Path, start: int, into: memoryview) -> None:
        lengths.append(len(into))
        read_file(path, start, into)

    monkeypatch.setattr(source, "_read_file", count)
    storage = foreign_storage.ForeignStorage(foreign_storage.detect_source(tmp_path / "state.pt"))
    assert sum(lengths) == weight.nbytes
    opened = open_step(storage, foreign_storage.RUN, 0)
    assert torch.equal(read_whole(storage, opened, None)["model/weight"], weight)


def test_many_ranks_shards_are_read_twice(tmp_path: Path) -> None:
    """They are read for their checksums, then for the tensors, of which each rank has a part."""
    ranks = 8
    keys = [f"model/{number}" for number in range(16)]
    shape = (ranks * 4, 64)
    part_bytes = 4 * 64 * 4
    stream = memoryview(bytearray(os.urandom(part_bytes * len(keys))))
    manifests: list[Manifest] = []
    sources: dict[str, list[ShardSource]] = {key: [] for key in keys}
    store = CountingStorage(tmp_path / "runs")
    for rank in range(ranks):
        parts: list[TensorPart] = []
        for number, key in enumerate(keys):
            part = TensorPart(
                key=key,
                dtype="float32",
                shape=shape,
                offset=(rank * 4, 0),
                extent=(4, 64),
                at=number * part_bytes,
                bytes=part_bytes,
            )
            parts.append(part)
            sources[key].append(ShardSource(rank=rank, part=part))
        manifest = Manifest(
            run="r",
            step=1,
            attempt="a" * 12,
            rank=rank,
            world_size=ranks,
            shards=(Shard(bytes=len(stream), crc32c=crc32c(stream)),),
            tensors=tuple(parts),
            values={},
        )
        manifests.append(manifest)
        store.put(manifest.shard_name(0), stream, manifest.shards[0].crc32c)
    commit = Commit(
        run="r",
        step=1,
        attempt="a" * 12,
        world_size=ranks,
        total_bytes=ranks * len(stream),
        created=0,
        manifests=(),
    )
    opened = Opened(commit=commit, manifests=tuple(manifests), sources=sources)
    reader = VerifiedReader(store, opened)
    for number, key in enumerate(keys):
        (block,) = reader.read_blocks(key)
        start = number * part_bytes
        expected = bytes(stream[start : start + part_bytes]) * ranks
        assert bytes(view_memory(block)) == expected
    assert store.bytes_read == 2 * commit.total_bytes


class CountingStorage(LocalStorage):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        (root / ".incoming").mkdir(parents=True)
        self.bytes_read = 0

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        self.bytes_read += len(into)
        super().read_into(name, start, into)
