"""The commands: lists, exit codes and exports."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from holdfast.checkpoint import Checkpointer, load_tensors
from holdfast.checkpoint.cli import app
from holdfast.support.errors import InputError
from workloads.library.tests.checkpoint.corruptions import shards
from workloads.library.tests.checkpoint.jobs import RUN

pytestmark = pytest.mark.process
NEW = f"{RUN}/step-0000000006"


def attempts(url: Path, *flags: str, code: int = 0) -> list[dict[str, object]]:
    result = CliRunner().invoke(
        app,
        [
            "list",
            str(url),
            "--json",
            *flags,
        ],
    )
    assert result.exit_code == code, result.output
    answer = json.loads(result.stdout)
    assert answer["schema"] == "holdfast.checkpoints/1"
    return answer["attempts"]


def test_the_list_shows_steps_and_states_and_damage_is_a_finding(url: Path) -> None:
    rows = []
    for row in attempts(url):
        rows.append((row["step"], row["state"], row["world_size"]))
    assert rows == [(6, "verified", 2), (3, "verified", 2)]
    assert run_command("list", url).count("verified") == 2, "the table"
    shard = shards(url / NEW)[0]
    shard.write_bytes(bytes(shard.stat().st_size))
    assert str(attempts(url, code=1)[0]["state"]).startswith("skipped: ")
    assert attempts(url, "--quick")[0]["state"] == "committed, not read"
    (url / NEW / "COMMIT.json").unlink()
    assert str(attempts(url)[0]["state"]).startswith("no commit"), "a save may be writing it"


def test_nothing_found_is_not_success(tmp_path: Path) -> None:
    assert "no checkpoint found" in refusal("list", tmp_path)
    assert "no such checkpoint folder" in refusal("list", tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_an_export_has_the_bits_in_safetensors_layout(url: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    run_command(
        "export",
        url,
        "--out",
        out,
    )
    data = out.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    step, tensors = load_tensors(str(url), keys=["model/"])
    assert header.pop("__metadata__")["step"] == str(step)
    assert len(header) == len(tensors)
    payload = bytearray(data[8 + length :])
    for name, entry in header.items():
        low, high = entry["data_offsets"]
        raw = torch.frombuffer(payload[low:high], dtype=torch.float32)
        assert torch.equal(raw.view(entry["shape"]), tensors[f"model/{name}"])


def test_one_step_and_some_tensors_are_chosen_for_serving(url: Path) -> None:
    assert load_tensors(url, keys=["model"]) == (6, {})
    step, tensors = load_tensors(url, keys=["model/"], step=3)
    assert step == 3
    assert tensors
    for key in tensors:
        assert key.startswith("model/")
    with pytest.raises(InputError, match="no checkpoint of this step"):
        load_tensors(url, step=7)


def test_an_export_with_equal_names_or_to_an_existing_file_is_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    other = torch.nn.Linear(2, 2)
    with Checkpointer(tmp_path / "runs", {"model": model, "other": other}, run="r") as ckpt:
        ckpt.tick(1)
    assert "one name" in refusal(
        "export",
        tmp_path / "runs",
        "--keys",
        "model/,other/",
        "--out",
        tmp_path / "m",
    )
    (tmp_path / "m").write_text("")
    assert "output exists" in refusal(
        "export",
        tmp_path / "runs",
        "--out",
        tmp_path / "m",
    )


def test_an_export_without_a_model_lists_the_entries(tmp_path: Path) -> None:
    with Checkpointer(
        tmp_path / "runs",
        {
            "network": torch.nn.Linear(2, 2),
            "w": torch.zeros(1),
        },
        run="r",
    ) as ckpt:
        ckpt.tick(1)
    with pytest.raises(InputError, match="no tensor has such a key") as refused:
        CliRunner().invoke(
            app,
            [
                "export",
                str(tmp_path / "runs"),
                "--out",
                str(tmp_path / "m"),
            ],
            catch_exceptions=False,
        )
    assert refused.value.got == "--keys model/"
    assert refused.value.fix == "--keys network/"
    assert "w/" not in refused.value.allowed
    assert "network/, w" in refused.value.allowed


def invoke(*arguments: object, catch_exceptions: bool = True) -> Result:
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(app, words, catch_exceptions=catch_exceptions)


def run_command(*arguments: object, code: int = 0) -> str:
    result = invoke(*arguments)
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def refusal(*arguments: object) -> str:
    with pytest.raises(InputError) as refused:
        invoke(*arguments, catch_exceptions=False)
    return str(refused.value)


def test_commands_and_uploader_start_without_torch() -> None:
    modules = [
        "holdfast.checkpoint.cli",
        "holdfast.checkpoint.errors",
        "holdfast.checkpoint.failpoints",
        "holdfast.checkpoint.stores",
    ]
    import_without(modules, "torch", "google")
    # Each rank of each start has an uploader: it loads no metadata of distributions either.
    uploader = "holdfast.checkpoint.save.uploader_process"
    import_without([uploader], "torch", "google", "importlib.metadata", "email", "zipfile")


def import_without(modules: list[str], *heavy: str) -> None:
    """Imports modules in a new process, and checks that none of `heavy` came with them."""
    program = f"import sys, {', '.join(modules)}; print(sorted(sys.modules.keys() & {set(heavy)}))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[4],
    )
    assert done.stdout == "[]\n", done.stdout
