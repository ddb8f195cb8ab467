"""What the exporter logs are lines with a severity, on standard output."""

import json
import logging

import pytest

from holdfast.exporter.log import logger
from holdfast.runtime import logs


def test_a_line_carries_severity_action_and_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = logging.getLogger(logs.NAME)
    monkeypatch.setattr(shared, "handlers", [])
    monkeypatch.setattr(shared, "propagate", True)
    logs.info("start", "the exporter starts")
    logger("receipt").warning("no receipt of %s", "run-7")
    first, line = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert first["action"] == "start"
    assert (line["severity"], line["action"], line["message"]) == ("WARNING", "receipt", "no receipt of run-7")
