"""The command: what it lists, how it ends, and what it exports."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from holdfast.checkpoint import load_tensors
from holdfast.checkpoint.cli import app
from holdfast.contract.errors import InputError
from tests.workloads.library.checkpoint.corruptions import shards
from tests.workloads.library.checkpoint.jobs import RUN, Jobs

pytestmark = pytest.mark.process


@pytest.fixture
def url(jobs: Jobs, tmp_path: Path) -> Path:
    assert jobs.run(tmp_path / "url", tmp_path, world=2, steps=6) == [0, 0]
    return tmp_path / "url"


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


def test_a_damaged_checkpoint_is_a_finding_with_its_reason(url: Path) -> None:
    shards(url / RUN / "step-0000000006")[0].write_bytes(b"")
    found = attempts(url, code=1)
    assert str(found[0]["state"]).startswith("skipped: ")
    assert attempts(url, "--quick")[0]["state"] == "committed, not read"


def test_an_attempt_without_commit_is_listed_and_is_no_finding(url: Path) -> None:
    (url / RUN / "step-0000000006" / "COMMIT.json").unlink()
    assert str(attempts(url)[0]["state"]).startswith("no commit")


def test_the_table_shows_the_same_rows(url: Path) -> None:
    result = CliRunner().invoke(app, [str(url)])
    assert result.exit_code == 0
    assert result.stdout.count("verified") == 2


def test_nothing_found_is_not_success(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, [str(tmp_path)]).exit_code == 2
    with pytest.raises(InputError, match="no such checkpoint folder"):
        CliRunner().invoke(app, [str(tmp_path / "absent")], catch_exceptions=False)
    assert not (tmp_path / "absent").exists()


def test_an_export_holds_the_bits_in_the_layout_of_safetensors(url: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    result = CliRunner().invoke(app, ["export", str(url), "--out", str(out)])
    assert result.exit_code == 0, result.output
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


def test_help_needs_no_torch() -> None:
    program = (
        "import sys, holdfast.checkpoint.cli as c; assert 'torch' not in sys.modules and 'google' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[4])
