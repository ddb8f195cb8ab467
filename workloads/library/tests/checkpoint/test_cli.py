"""The command: what it lists, how it ends, and what it exports."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint
from typer.testing import CliRunner

from holdfast.checkpoint import Checkpointer, load_tensors
from holdfast.checkpoint.cli import app, show
from holdfast.checkpoint.exchange import read_safetensors, write_folder
from holdfast.checkpoint.inspection import Row
from holdfast.contract.errors import InputError
from workloads.library.tests.checkpoint.corruptions import shards, zero_first_shard
from workloads.library.tests.checkpoint.jobs import RUN

pytestmark = pytest.mark.process
NEW = f"{RUN}/step-0000000006"


def attempts(url: Path, *flags: str, code: int = 0) -> list[dict[str, object]]:
    result = CliRunner().invoke(app, [str(url), "--json", *flags])
    assert result.exit_code == code, result.output
    answer = json.loads(result.stdout)
    assert answer["schema"] == "holdfast.checkpoints/1"
    return answer["attempts"]


def test_the_list_shows_step_state_and_where_it_resumes(url: Path) -> None:
    found = attempts(url)
    assert [(row["step"], row["state"], row["world_size"]) for row in found] == [(6, "verified", 2), (3, "verified", 2)]
    assert {row["resumes_on"] for row in found} == {"any world size"}
    assert ran(url).count("verified") == 2, "the table"


def test_a_damaged_checkpoint_is_a_finding_with_its_reason(url: Path) -> None:
    zero_first_shard(url / NEW)
    assert str(attempts(url, code=1)[0]["state"]).startswith("skipped: ")
    assert attempts(url, "--quick")[0]["state"] == "committed, not read"


def test_an_attempt_without_commit_is_listed_and_is_no_finding(url: Path) -> None:
    (url / NEW / "COMMIT.json").unlink()
    assert str(attempts(url)[0]["state"]).startswith("no commit")


def test_names_and_reasons_of_the_bucket_do_not_speak_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    loud = "\x1b[2J##[error]"
    show([Row(run=f"run{loud}", step=1, attempt="a", bytes=1, state=f"why{loud}", age_s=1.0)])
    shown = capsys.readouterr().out
    assert shown.count("\\x1b[2J#_[error]") == 2 and "\x1b" not in shown


def test_a_mistyped_command_is_not_taken_for_a_folder() -> None:
    result = CliRunner().invoke(app, ["verify", "gs://bucket/runs"])
    assert result.exit_code == 2 and "No such command 'verify'" in result.output


def test_nothing_found_is_not_success(tmp_path: Path) -> None:
    assert "no checkpoint is there" in refusal(tmp_path)
    assert "no such checkpoint folder" in refusal(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_an_export_holds_the_bits_in_the_layout_of_safetensors(url: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    ran("export", url, "--out", out)
    data = out.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    step, tensors = load_tensors(str(url), keys=["model/"])
    assert header.pop("__metadata__")["step"] == str(step)
    assert set(header) == set(tensors)
    for name, entry in header.items():
        low, high = entry["data_offsets"]
        raw = torch.frombuffer(bytearray(data[8 + length + low : 8 + length + high]), dtype=torch.float32)
        assert torch.equal(raw.view(entry["shape"]), tensors[name])


def test_an_export_of_a_state_without_a_model_names_what_it_has(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "runs", {"network": torch.nn.Linear(2, 2), "w": torch.zeros(1)}, run="r") as ckpt:
        ckpt.tick(1)
    with pytest.raises(InputError, match="no tensor has such a key") as refused:
        CliRunner().invoke(
            app, ["export", str(tmp_path / "runs"), "--out", str(tmp_path / "m")], catch_exceptions=False
        )
    assert (refused.value.got, refused.value.fix) == ("--keys model/", "--keys network/")
    assert "w/" not in refused.value.allowed and "network/, w" in refused.value.allowed


def ran(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def refusal(*arguments: object) -> str:
    with pytest.raises(InputError) as refused:
        CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    return str(refused.value)


def test_a_copy_holds_the_same_objects_repeats_nothing_and_passes_over_damage(url: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    assert "step 6" in ran("copy", url, there) and "step 3" not in ran("copy", url, there)
    assert ran("copy", url, there, "--all").splitlines()[1] == "step 6: there already"
    steps = [f"{RUN}/step-{step:010d}" for step in (3, 6)]
    for file in (file for step in steps for file in (url / step).rglob("*.*")):
        assert (there / file.relative_to(url)).read_bytes() == file.read_bytes()
    assert {row["state"] for row in attempts(there)} == {"verified"}
    zero_first_shard(url / NEW)
    assert "passed over" in ran("copy", url, tmp_path / "third", code=1)
    assert not list((tmp_path / "third").rglob("COMMIT.json"))


def test_the_list_and_a_copy_take_from_the_mirror_what_the_first_store_has_lost(
    url: Path, pristine: Path, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    shards(url / NEW)[0].unlink()
    assert attempts(url, "--mirror", str(pristine))[0]["state"] == "verified"
    assert "step 6" in ran("copy", url, there, "--mirror", pristine)
    assert [(row["step"], row["state"]) for row in attempts(there)] == [(6, "verified")]
    assert "passed over" in ran("copy", url, tmp_path / "fourth", code=1)


def test_an_export_takes_from_the_mirror_what_the_first_store_has_damaged(
    url: Path, pristine: Path, tmp_path: Path
) -> None:
    zero_first_shard(url / NEW)
    assert "step 6" in ran("export", url, "--out", tmp_path / "newest", "--mirror", pristine)
    assert "step 3" in ran("export", url, "--out", tmp_path / "older")


def test_prune_shows_first_deletes_when_asked_and_leaves_what_is_pinned(url: Path) -> None:
    assert "would delete steps 3" in ran("prune", url, "--keep", 1)
    assert ran("pin", url, 3) == f"{RUN}: pinned steps 3\n"
    assert "deleting steps none" in ran("prune", url, "--keep", 1, "--yes")
    ran("pin", url, 3, "--remove")
    assert "deleting steps 3" in ran("prune", url, "--keep", 1, "--yes")
    assert [row["step"] for row in attempts(url)] == [6]
    assert "no duration" in refusal("prune", url, "--keep", 1, "--keep-younger", "soon")


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5)).to(torch.bfloat16)
    return {key: value.clone() for key, value in model.state_dict().items()}


def saved_by_torch(folder: Path) -> Path:
    torch.save(weights(), folder / "w.pt")
    return folder / "w.pt"


def saved_by_dcp(folder: Path) -> Path:
    torch.distributed.checkpoint.save({"model": weights()}, checkpoint_id=folder / "dcp", no_dist=True)
    return folder / "dcp"


def saved_as_safetensors(folder: Path) -> Path:
    write_folder(folder / "files", weights(), {"format": "pt"}, file_bytes=20)
    assert len(list((folder / "files").glob("*.safetensors"))) > 2
    return folder / "files"


@pytest.mark.filterwarnings("ignore")  # of DCP without a process group
@pytest.mark.parametrize("make", [saved_by_torch, saved_by_dcp, saved_as_safetensors])
def test_a_file_of_others_is_imported_and_goes_out_as_it_came(make: Callable[[Path], Path], tmp_path: Path) -> None:
    source, store, out = make(tmp_path), tmp_path / "store", tmp_path / "out"
    if make is saved_by_dcp:
        assert "pickle" in refusal("copy", source, store, "--import", "--run", "r")
    ran("copy", source, store, "--import", "--run", "r", "--step", 7, "--trust")
    assert "there already" in refusal("copy", source, store, "--import", "--run", "r", "--step", 7, "--trust")
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5)).to(torch.bfloat16)
    assert Checkpointer.load(str(store), {"model": model}).step == 7
    assert all(torch.equal(value, weights()[key]) for key, value in model.state_dict().items())
    like = tmp_path / "like"
    like.mkdir()
    (like / "config.json").write_text("{}")
    ran("export", store, "--out", out, "--to", "pretrained", "--like", like)
    assert {file.name for file in out.iterdir()} == {"config.json", "model.safetensors"}
    back = read_safetensors(out)
    assert all(torch.equal(value, weights()[key]) for key, value in back.items()) and len(back) == len(weights())


def test_what_would_run_code_or_is_no_checkpoint_is_refused_in_words(tmp_path: Path) -> None:
    torch.save({"model": torch.nn.Linear(1, 1)}, tmp_path / "object.pt")
    (tmp_path / "text.pt").write_text("no zip")
    (tmp_path / "cut.safetensors").write_bytes(b"\xff" * 20)
    (tmp_path / "empty.safetensors").write_bytes(b"")
    for name, message in (
        ("object.pt", "without running"),
        ("text.pt", "without running"),
        ("cut.safetensors", "no safetensors file"),
        ("empty.safetensors", "no safetensors file"),
        ("absent", "nothing that can be imported"),
    ):
        assert message in refusal("copy", tmp_path / name, tmp_path / "store", "--import", "--run", "r")


@pytest.mark.parametrize("module", ["cli", "errors", "failpoints", "save.uploader_process", "stores"])
def test_what_must_start_fast_needs_no_torch(module: str) -> None:
    light = "assert 'torch' not in sys.modules and 'google' not in sys.modules"
    program = f"import sys, holdfast.checkpoint.{module}; {light}"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[4])
