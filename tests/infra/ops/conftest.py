"""Puts a simulated gcloud first on PATH."""

import os
from pathlib import Path

import pytest

from tests.infra.ops.google import Gcloud


@pytest.fixture
def gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gcloud:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return Gcloud(folder)
