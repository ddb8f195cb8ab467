"""An environment whose images were pushed."""

import json
from pathlib import Path

import pytest

from holdfast.contract.roles import ROLES
from holdfast.manifests import render_context
from holdfast.manifests.database import PROXY


def push_images(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    digests = folder / "digests.json"
    digests.write_text(json.dumps({"example": dict.fromkeys((*ROLES, PROXY), "a" * 64)}))
    monkeypatch.setattr(render_context, "DIGESTS", digests)
