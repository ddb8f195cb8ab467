"""An environment whose images were pushed."""

import json
from pathlib import Path

import pytest

from infra.contract.names import ROLES
from workloads.manifests.builders import render_context
from workloads.manifests.builders.database import PROXY


def push_images(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    digests = folder / "digests.json"
    digests.write_text(json.dumps({"example": dict.fromkeys((*ROLES, PROXY), "a" * 64)}))
    monkeypatch.setattr(render_context, "DIGESTS", digests)
