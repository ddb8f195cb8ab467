"""The exit from CDKTF: after `python -m infra.ops.cdk_terrain`, CDK Terrain writes the same
Terraform.

Its bindings are those of provider release 8. They check every argument that the seam writes past
the older ones. Its command line is played in test_cdktn_cli.py.
"""

import json
import os
import re
import shutil
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from holdfast.support.errors import InputError
from infra.ops import cdk_terrain
from infra.ops.synth import synthesize
from tests.plan.isolated import ROOT, environment, site_packages

# The first run installs the tool.
if "import cdktn" in (ROOT / cdk_terrain.SEAM).read_text():
    pytest.skip("this repository has moved to CDK Terrain", allow_module_level=True)
pytestmark = [pytest.mark.plan, pytest.mark.process, pytest.mark.timeout(900)]


def copy_checkout(folder: Path) -> Path:
    for room in ("infra", "monitoring", "requirements"):
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    # The library: its sources here, its pinned wheel in a team's repository.
    for name in ("workloads/library", "vendor"):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).symlink_to(ROOT / name)
    return folder


def test_a_repository_moves_once_and_all_at_once(tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / "checkout")
    cdk_terrain.move(checkout)
    for name in (*cdk_terrain.FILES, f"{cdk_terrain.NODE_TOOLS}/package.json"):
        text = (checkout / name).read_text()
        # A pin of Python, of Node, an import.
        assert not re.search(r'cdktf[-a-z]*(==|":)|import cdktf', text), name
        assert "cdktn" in text, name
    with pytest.raises(InputError, match="moved already"):
        cdk_terrain.move(checkout)


@pytest.mark.parametrize("lock", ["dev", "infra"])
def test_moved_lock_meets_what_cdk_terrain_requires(tmp_path: Path, lock: str) -> None:
    checkout = copy_checkout(tmp_path / "checkout")
    cdk_terrain.move(checkout)
    text = (checkout / f"requirements/{lock}.txt").read_text()
    assert text.count("==") == (ROOT / f"requirements/{lock}.txt").read_text().count("==")
    pins = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.M))
    packages = site_packages(environment("cdktn"))
    for name in ("cdktn", "cdktn-provider-google"):
        [package] = distributions(name=name, path=[str(packages)])
        assert package.version == pins[name]
        for requirement in map(Requirement, package.requires or ()):
            assert pins[requirement.name] in requirement.specifier, f"{name} requires {requirement}"


def read_leaves(stack: Path) -> dict[str, Any]:
    return leaves(json.loads((stack / "cdk.tf.json").read_text()))


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Return dotted path -> value, for every value that is no container, or an empty one."""
    values: dict[str, Any] = {}
    if isinstance(value, dict):
        for key, inner in value.items():
            values |= leaves(inner, f"{path}.{key}")
    if isinstance(value, list):
        for index, inner in enumerate(value):
            values |= leaves(inner, f"{path}[{index}]")
    return values or {path: value}


def test_only_the_librarys_version_differs_without_overrides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = site_packages(environment("cdktn"))
    checkout = copy_checkout(tmp_path / "checkout")
    with_cdktf = synthesize(
        "example",
        tmp_path / "cdktf",
        local_state=True,
        root=checkout,
    )
    cdk_terrain.move(checkout)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(packages), str(checkout)]))
    with_cdktn = synthesize(
        "example",
        tmp_path / "cdktn",
        local_state=True,
        root=checkout,
    )
    assert list(with_cdktf) == list(with_cdktn)
    for stack in with_cdktf:
        old = read_leaves(with_cdktf[stack])
        new = read_leaves(with_cdktn[stack])
        differ = {
            path: (old.get(path), new.get(path))
            for path in old.keys() | new.keys()
            if old.get(path) != new.get(path)
        }
        # The libraries note their own version and what was written past the bindings; no engine
        # reads either.
        assert [path for path in differ if not path.startswith(".//.metadata.")] == [], stack
        assert not [path for path in new if path.startswith(".//.metadata.overrides.google_")], (
            stack
        )
        assert len(old) > 50, "an empty stack proves nothing"
