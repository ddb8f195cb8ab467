"""PEFT reads what `checkpoints export --adapter-config` writes."""

import sys
from pathlib import Path

import pytest

from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.elastic.gangs import Launched

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

SCRIPT = str(Path(__file__).with_name("adapters.py"))


@pytest.mark.parametrize("kind", ["lora", "dora", "embedding", "saved modules", "bias", "ia3"])
def test_exported_adapter_equals_pefts(
    framework_server: ForkServer, tmp_path: Path, kind: str
) -> None:
    process = Launched(tmp_path, framework_server, {})
    process.launch(0, [sys.executable, SCRIPT, kind, str(tmp_path)])
    assert process.ended(0) == 0, process.logs()
    assert process.read_log(0).splitlines()[-1] == "equal"
