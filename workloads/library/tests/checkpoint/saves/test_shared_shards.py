"""Frozen parameters are stored once for a run, and every checkpoint that names them needs them."""

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from holdfast.checkpoint import Checkpointer, load_tensors
from holdfast.checkpoint.cli import app
from holdfast.checkpoint.errors import StorageError
from holdfast.checkpoint.format import SCHEMA, SCHEMA_2
from holdfast.checkpoint.format.commit import read_commit
from holdfast.checkpoint.save.references import References
from holdfast.checkpoint.save.shared_shards import MIN_BYTES
from holdfast.checkpoint.save.uploader import UploadOrders
from holdfast.checkpoint.save.uploader_process import Saves
from holdfast.checkpoint.stores.local import LocalStorage
from holdfast.support.errors import InputError
from workloads.library.tests.checkpoint.jobs import TUNING, list_committed
from workloads.library.tests.checkpoint.made import job as make_job
from workloads.library.tests.checkpoint.made import make_adamw
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
WIDTH = 640
"""A frozen layer of 1.6 MB, more than is worth an object of its own."""


class Adapted(nn.Module):
    def __init__(self, seed: int, *, frozen: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.base = nn.Linear(WIDTH, WIDTH)
        self.base.requires_grad_(not frozen)
        self.down = nn.Parameter(torch.randn(2, WIDTH))
        self.up = nn.Parameter(torch.randn(WIDTH, 2))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.base(rows) + rows @ self.down.T @ self.up.T


def train(
    url: Path,
    until: int,
    *,
    seed: int = 0,
    frozen: bool = True,
    keep: int = 9,
    change: Callable[[Adapted, int], object] = lambda *_: None,
) -> tuple[int, dict[str, torch.Tensor]]:
    """Returns the step at which it begins, and the last weights."""
    model = Adapted(seed, frozen=frozen)
    optimizer = make_adamw(model, lr=0.01)
    state: dict[str, Any] = {"model": model}
    with Checkpointer(
        url,
        state,
        run="r",
        every=1,
        keep=keep,
        tuning=TUNING,
    ) as ckpt:
        first = ckpt.step
        for step in range(first, until):
            torch.manual_seed(step)
            optimizer.zero_grad()
            model(torch.randn(3, WIDTH)).square().mean().backward()
            optimizer.step()
            change(model, step)
            ckpt.tick(step + 1)
            assert ckpt.wait()
    return first, {name: tensor.clone() for name, tensor in model.state_dict().items()}


def list_shared(url: Path) -> list[Path]:
    return sorted((url / "r/shared").glob("*.bin"))


def sum_bytes(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def count_bytes(url: Path, step: int) -> int:
    return sum_bytes((url / f"r/step-{step:010d}").rglob("*.bin"))


def check_equal(url: Path, step: int, expected: dict[str, torch.Tensor]) -> None:
    loaded_step, tensors = load_tensors(url, "r", keys=["model/"])
    assert loaded_step == step
    for name, tensor in expected.items():
        assert torch.equal(tensors[f"model/{name}"], tensor), name


def test_frozen_parameters_are_written_once(tmp_path: Path) -> None:
    _, weights = train(tmp_path, 4)
    shared = list_shared(tmp_path)
    base_bytes = 4 * WIDTH * (WIDTH + 1)
    assert base_bytes <= sum_bytes(shared) <= base_bytes + 4096
    for step in range(1, 5):
        assert count_bytes(tmp_path, step) < 40_000, "trained parameters and random streams"
    check_equal(tmp_path, 4, weights)
    first_step, weights = train(tmp_path, 6, seed=1)
    assert first_step == 4
    assert list_shared(tmp_path) == shared, "the base came with the checkpoint"
    check_equal(tmp_path, 6, weights)
    manifest = next((tmp_path / "r/step-0000000006").rglob("rank-00000.json"))
    assert json.loads(manifest.read_bytes())["schema"] == SCHEMA_2


def test_next_save_estimate_leaves_the_base_out(tmp_path: Path) -> None:
    """The first save of a run stores the base. A notice right after it would find that a last save
    takes as long again, and lose the steps since.
    """
    model = Adapted(0)
    repeated: list[int] = []
    with Checkpointer(
        tmp_path,
        {"model": model, "optimizer": make_adamw(model)},
        run="r",
        every=1,
        tuning=TUNING,
    ) as ckpt:
        for step in range(1, 4):
            ckpt.tick(step)
            assert ckpt.wait()
            cost = ckpt._writer.save_cost  # pyright: ignore[reportPrivateUsage]
            repeated.append(cost.repeated_bytes)
            assert cost.persist_s > 0
    assert list_shared(tmp_path)
    assert len({*repeated}) == 1
    assert 0 < repeated[0] < 40_000


class FullBucket(LocalStorage):
    """Takes what a run stores once, and nothing else while it is full."""

    is_full = True

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        if self.is_full and "/shared/" not in name:
            raise StorageError("no room")
        super().put(name, data, crc32c)


def test_next_save_leaves_out_what_a_failed_one_stored(tmp_path: Path) -> None:
    """Counted again, they would make the next save's own share look far too small."""
    reports: list[dict[str, Any]] = []
    # Rank 1 leaves the commit to rank 0.
    job, stream = make_job({"model": nn.Linear(4, 4)}, 1, rank=1, world=2)
    frozen_bytes = 2 * MIN_BYTES
    data = memoryview(bytearray(frozen_bytes) + bytes(stream))
    job = replace(
        job,
        frozen_bytes=frozen_bytes,
        length=len(data),
        shard_bytes=frozen_bytes,
    )
    mailbox: Any = SimpleNamespace(report=lambda **fields: reports.append(fields))
    memory: Any = SimpleNamespace(view=lambda length: data[:length])
    storage = FullBucket.open(str(tmp_path))
    orders = UploadOrders(
        url=str(tmp_path),
        run="r",
        tuning=TUNING,
        keep=1,
        commit_count=0,
        epoch=0,
    )
    saves = Saves(mailbox, [memory], storage, orders)
    with pytest.raises(StorageError, match="no room"):
        saves._save(job)
    storage.is_full = False
    saves._save(job)
    assert len(list_shared(tmp_path)) == 1
    (uploaded,) = reports
    assert uploaded["once_bytes"] == 0
    assert uploaded["written_bytes"] == len(stream)


def test_full_training_writes_what_it_wrote(tmp_path: Path) -> None:
    train(tmp_path, 2, frozen=False)
    assert not list_shared(tmp_path)
    manifests = list(tmp_path.rglob("rank-00000.json"))
    assert len(manifests) == 2
    for manifest in manifests:
        assert json.loads(manifest.read_bytes())["schema"] == SCHEMA


def test_frozen_parameters_that_change_are_written_each_time(tmp_path: Path) -> None:
    def change(model: Adapted, step: int) -> None:
        with torch.no_grad():
            model.base.weight.data += step

    _, weights = train(tmp_path, 4, change=change)
    check_equal(tmp_path, 4, weights)
    shared = len(list_shared(tmp_path))
    _, weights = train(tmp_path, 9, change=change)
    check_equal(tmp_path, 9, weights)
    assert len(list_shared(tmp_path)) <= 2 * shared, "no new objects with every save"


def add_in_place(weight: nn.Parameter) -> None:
    with torch.no_grad():
        weight[0, 0] += 1


def add_to_data(weight: nn.Parameter) -> None:
    weight.data[0, 0] += 1


def add_to_array(weight: nn.Parameter) -> None:
    weight.numpy()[0, 0] += 1


def replace_data(weight: nn.Parameter) -> None:
    weight.data = weight + 1


# The second and the third, as averages kept by hand and merges of adapters do, leave PyTorch's own
# counter of changes as it was: infra/decisions/0174.
@pytest.mark.parametrize(
    "write",
    [
        add_in_place,
        add_to_data,
        add_to_array,
        replace_data,
    ],
)
def test_changed_frozen_parameter_is_written(
    tmp_path: Path, write: Callable[[nn.Parameter], None]
) -> None:
    def change(model: Adapted, step: int) -> None:
        if step == 2:
            write(model.base.weight)

    _, weights = train(tmp_path, 2)
    _, changed = train(tmp_path, 4, change=change)
    before = weights["base.weight"]
    assert not torch.equal(changed["base.weight"], before)
    check_equal(tmp_path, 4, changed)


def test_shared_objects_go_with_their_last_commit(tmp_path: Path) -> None:
    train(tmp_path, 3, keep=2)
    first = list_shared(tmp_path)

    def exchange(model: Adapted, step: int) -> None:
        if step == 3:
            with torch.no_grad():
                model.base.weight.zero_()

    train(tmp_path, 4, keep=2, change=exchange)
    assert set(first) < set(list_shared(tmp_path)), "step 3 names them"
    _, weights = train(tmp_path, 6, keep=2)
    assert list_committed(tmp_path, "r") == [6, 5]
    named: set[str] = set()
    for manifest in tmp_path.rglob("rank-00000.json"):
        for shard in json.loads(manifest.read_bytes())["shards"]:
            named.add(shard.get("sha256", ""))
    expected = sorted(named - {""})
    # The uploader ends by itself, after it has deleted what no rule keeps.
    until(lambda: [path.stem for path in list_shared(tmp_path)] == expected, "unused objects go")
    assert not {path.stem for path in first} <= named
    check_equal(tmp_path, 6, weights)


def test_unreadable_manifest_deletes_nothing(tmp_path: Path) -> None:
    train(tmp_path, 2)
    storage = LocalStorage.open(str(tmp_path))
    commits = {}
    for step in (1, 2):
        commit = read_commit(storage, "r", step)
        assert commit
        commits[step] = commit
    next((tmp_path / "r/step-0000000002").rglob("rank-00000.json")).write_bytes(b"{}")
    references = References(storage, {})
    references.read(commits)
    assert references.delete_orphans("r", {2: commits[2]}, oldest=1e12) == []
    assert list_shared(tmp_path)


def test_damaged_shared_object_fails_each_version_that_names_it(tmp_path: Path) -> None:
    _, whole = train(tmp_path, 1, frozen=False)
    train(tmp_path, 3)
    shared = list_shared(tmp_path)[0]
    data = bytearray(shared.read_bytes())
    data[len(data) // 2] ^= 1
    shared.write_bytes(data)
    check_equal(tmp_path, 1, whole)
    first_step, weights = train(tmp_path, 4)
    assert first_step == 1, "past both versions that name it"
    # The object is written again at the next start, and later saves are sound.
    check_equal(tmp_path, 4, weights)


def spoil(path: Path, draw: random.Random) -> str:
    """Damages a file in one of several ways, and returns which."""
    data = bytearray(path.read_bytes())
    kind = draw.choice(("flip", "hole", "cut", "append", "delete", "empty"))
    place = draw.randrange(len(data))
    if kind == "flip":
        data[place] ^= 1 << draw.randrange(8)
    elif kind == "hole":
        length = draw.randint(1, 4096)
        end = min(place + length, len(data))
        for index in range(place, end):
            data[index] ^= 0xFF
    elif kind == "cut":
        del data[place:]
    elif kind == "append":
        data += b"\x00"
    elif kind == "empty":
        data.clear()
    if kind == "delete":
        path.unlink()
    else:
        path.write_bytes(data)
    return kind


def test_450_damages_are_found(tmp_path: Path) -> None:
    train(tmp_path, 2)
    _, expected = train(tmp_path, 3)
    newest = tmp_path / "r/step-0000000003"
    files = [*list_shared(tmp_path), *filter(Path.is_file, newest.rglob("*"))]
    outcomes: set[str] = set()
    for number in range(450):
        draw = random.Random(number)
        path = files[number % len(files)]
        data = path.read_bytes()
        kind = spoil(path, draw)
        try:
            with pytest.raises(InputError):
                load_tensors(tmp_path, "r", step=3)
        finally:
            path.write_bytes(data)
        outcomes.add(f"{path.parent.name == 'shared'} {kind}")
    assert len(outcomes) == 12
    check_equal(tmp_path, 3, expected)


def test_branch_does_not_need_the_shared_objects(tmp_path: Path) -> None:
    _, weights = train(tmp_path, 2)
    command = [
        "branch",
        str(tmp_path),
        "--run",
        "r",
        "--to",
        "other",
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    for path in list_shared(tmp_path):
        path.unlink()
    _, tensors = load_tensors(tmp_path, "other", keys=["model/"])
    for name, tensor in weights.items():
        assert torch.equal(tensors[f"model/{name}"], tensor)
