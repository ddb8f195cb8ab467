"""`infra new` writes a module that loads, says CHANGE-ME where it must, and keeps the
protections.
"""

import importlib.util
import shutil
from pathlib import Path

import pytest

from holdfast.support.errors import InputError
from infra import environments
from infra.environments import Environment, placeholders
from infra.ops.new import create
from infra.rules import judge_environment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("example", "prod"):
        shutil.copy(Path(environments.__file__).with_name(f"{name}.py"), tmp_path)
    return tmp_path


def load(path: Path) -> Environment:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ENVIRONMENT


def test_the_new_environment_loads_and_asks_for_what_is_personal(folder: Path) -> None:
    path = create("team", folder)
    environment = load(path)
    assert environment.name == "team"
    assert placeholders(environment) == [
        "project_id",
        "project_number",
        "state_bucket",
        "alerts.emails[0]",
        "alerts.readers[0]",
    ]
    assert judge_environment(environment) == []
    for trial in ("deletion_protection=False", "allow_destroy", "allow_drills", "acme"):
        assert trial not in path.read_text(), "what only a trial gives up"


def test_hardened_environment_asks_only_for_what_is_personal(folder: Path) -> None:
    environment = load(create("teamprod", folder, "prod"))
    assert environment.name == "teamprod"
    assert environment.production
    assert placeholders(environment) == [
        "project_id",
        "project_number",
        "state_bucket",
        "security.kms_key",
        "security.rbac_security_group",
        "alerts.emails[0]",
        "budget.billing_account",
    ]
    assert judge_environment(environment) == []


@pytest.mark.parametrize("pattern", ["team", "schema", "../prod"])
def test_unknown_pattern_is_refused(pattern: str, folder: Path) -> None:
    (folder / "schema.py").touch()
    create("team", folder)
    with pytest.raises(InputError, match="pattern"):
        create("other", folder, pattern)
    assert not (folder / "other.py").exists()


@pytest.mark.parametrize(
    "name", ["example", "schema", "Dev", "a-name", "class", "much-too-long-for-this"]
)
def test_a_name_that_cannot_be_or_is_taken_is_refused(folder: Path, name: str) -> None:
    (folder / "schema.py").touch()
    with pytest.raises(InputError, match="environment name"):
        create(name, folder)
