"""tritonclient and openai as they come, in an environment of their own: no option of theirs is needed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.plan.isolated import environment
from workloads.library.tests.inference.server.serving import PREDICTORS, Served, served

pytestmark = pytest.mark.process
SCRIPT = Path(__file__).with_name("strangers.py")


def seen(client: str, server: Served) -> dict[str, Any]:
    command = [environment("clients") / "bin" / "python", SCRIPT, client, str(server.port)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_tritonclient_as_it_comes(tmp_path: Path) -> None:
    with served(tmp_path, predictor=f"{PREDICTORS}:echoing") as server:
        assert seen("triton", server) == {
            "ready": True,
            "outputs": ["said", "bytes"],
            "numbers": ['{"x": [1.0, 2.0]}', '{"x": [3.0, 4.0]}'],
            "texts": ["a", "é"],
            "packed": [1, 2],
            "refused": "404",
        }


def test_openai_as_it_comes(tmp_path: Path) -> None:
    (tmp_path / "step").write_text("1")
    with served(tmp_path, "--model", str(tmp_path / "step"), predictor=f"{PREDICTORS}:completing") as server:
        assert seen("openai", server) == {
            "models": ["model"],
            "whole": "1.1 1.2 1.3 ",
            "pieces": ["1.1 ", "1.2 ", "1.3 "],
            "usage": 11,
            "refused": ["echo", "extra_body", "logprobs", "prompt", "stream_options", "suffix"],
        }
