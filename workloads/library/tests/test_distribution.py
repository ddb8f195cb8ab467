"""The distribution is `holdfast-gke`: nothing sends users to `holdfast`, and nothing starts next to
it.
"""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from holdfast.support.distribution import DISTRIBUTION, install_command, require_no_foreign_package
from holdfast.support.errors import InputError
from tests.support import ROOT, ran

LIBRARY = ROOT / "workloads" / "library"
# Words that name a distribution to pip, a workflow, a lock or a reader.
WRONG_NAME = re.compile(
    r"pip3? install (?:-\S+ )*['\"]?holdfast(?![\w-])"
    r"|(?<![\w.-])holdfast\[(?=[a-z])"
    r"|(?<![\w.-])holdfast(?:==|>=|-VERSION|-\*\.whl|-\d+\.\d)"
    r"|(?:version|distribution|metadata|requires)\(['\"]holdfast['\"]\)"
)
OWN = Path(__file__).relative_to(ROOT).as_posix()


def metadata(folder: Path, name: str) -> Path:
    """The folder that tells pip and importlib.metadata what is installed."""
    info = folder / name
    info.mkdir(parents=True)
    distribution, _, version = name.removesuffix(".dist-info").partition("-")
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    return info


def test_nothing_names_the_foreign_distribution() -> None:
    listed = ran(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    ).stdout.splitlines()
    mentions: list[str] = []
    for name in listed:
        path = ROOT / name
        if name == OWN or not path.is_file() or path.suffix in (".png", ".gz", ".parquet"):
            continue
        lines = path.read_text(errors="ignore").splitlines()
        for number, line in enumerate(lines, 1):
            if WRONG_NAME.search(line):
                mentions.append(f"{name}:{number}: {line}")
    assert mentions == []


@pytest.mark.parametrize(
    "text",
    [
        "pip install -U holdfast",
        "pip install 'holdfast[gcs]'",
        "needs holdfast[jobs]",
        "version('holdfast')",
        "holdfast==0.1.0",
    ],
)
def test_a_text_that_names_the_foreign_distribution_is_found(text: str) -> None:
    assert WRONG_NAME.search(text)


@pytest.mark.process
@pytest.mark.parametrize("words", [["-m", "holdfast", "--help"], ["-m", "holdfast", "lint"]])
def test_the_command_line_refuses_the_foreign_distribution(
    words: list[str], tmp_path: Path
) -> None:
    info = metadata(tmp_path, "holdfast-0.5.1.dist-info")
    done = ran(
        [sys.executable, *words], tmp_path, os.environ | {"PYTHONPATH": f"{tmp_path}:{LIBRARY}"}
    )
    assert done.returncode == 2
    assert done.stdout == ""
    message, got, allowed, fix = done.stderr.splitlines()
    assert message.startswith("error: ")
    assert str(info) in got
    assert DISTRIBUTION in allowed
    assert "pip uninstall holdfast;" in fix
    assert f"{DISTRIBUTION}, or its wheel" in fix


@pytest.mark.process
def test_a_trainer_refuses_the_foreign_distribution(tmp_path: Path) -> None:
    metadata(tmp_path, "holdfast-0.5.1.dist-info")
    words = [sys.executable, "-c", "from holdfast.checkpoint import Checkpointer"]
    done = ran(words, tmp_path, os.environ | {"PYTHONPATH": f"{tmp_path}:{LIBRARY}"})
    assert done.returncode == 1
    assert "fix: pip uninstall holdfast" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "name",
    [
        "holdfast-0.5.1.dist-info",
        "Holdfast-0.5.1.dist-info",
        "holdfast.egg-info",
        "holdfast-0.5.1-py3.12.egg-info",
    ],
)
def test_each_metadata_form_is_recognized(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata(tmp_path, name)
    metadata(tmp_path, "holdfast_gke-0.1.0.dist-info")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError) as refused:
        require_no_foreign_package()
    assert refused.value.got == str(tmp_path / name)
    assert refused.value.fix.endswith("--no-deps holdfast-gke==0.1.0, or its wheel")


def test_distributions_with_other_names_are_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "holdfast_gke-0.1.0.dist-info",
        "holdfast_platform-0.1.0.dist-info",
        "holdfast-gke-0.1.0.egg-info",
    ):
        metadata(tmp_path, name)
    for folder in (tmp_path, tmp_path / "gone", Path(__file__)):
        monkeypatch.syspath_prepend(folder)
    require_no_foreign_package()


def test_an_installed_library_names_its_extra_and_a_clone_its_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install_command("gcs") == "make setup"
    metadata(tmp_path, "holdfast_gke-0.1.0.dist-info")
    monkeypatch.syspath_prepend(tmp_path)
    assert install_command("gcs") == "pip install 'holdfast-gke[gcs]'"


@pytest.mark.parametrize(
    ("wheel_exists", "scheme", "is_named"),
    [(True, "file", True), (False, "file", False), (True, "https", False)],
)
def test_an_installed_wheel_is_named_by_its_path_while_it_exists(
    wheel_exists: bool, scheme: str, is_named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my wheels"
    folder.mkdir()
    wheel = folder / "holdfast_gke-0.1.0-py3-none-any.whl"
    if wheel_exists:
        wheel.touch()
    info = metadata(tmp_path, "holdfast_gke-0.1.0.dist-info")
    address = wheel.as_uri().replace("file:", f"{scheme}:")
    (info / "direct_url.json").write_text(json.dumps({"url": address, "archive_info": {}}))
    monkeypatch.syspath_prepend(tmp_path)
    requirement = f"{wheel if is_named else 'holdfast-gke'}[gcs]"
    assert install_command("gcs") == f"pip install '{requirement}'"
