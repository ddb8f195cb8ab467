"""The template that a team keeps: its size, its own fast tests, and its plan, with the library as
the wheel in it.
"""

import ast
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import tiers
from tests.support import ROOT, ran

pytestmark = [pytest.mark.plan, pytest.mark.timeout(1200)]
# Syntax nodes, which no formatting changes.
MOST_PRODUCT_NODES = 86_000
MOST_TEST_NODES = 110_000
MOST_FILES = 450


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("template") / "acme-platform"
    done = make(out, "--env", "acme")
    assert done.returncode == 0, done.stderr
    (wheel,) = (out / "vendor").glob("holdfast_gke-*.whl")
    zipfile.ZipFile(wheel).extractall(out.parent / "site")
    return out


def make(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return ran([sys.executable, ROOT / ".ci/template.py", *words])


def run(template: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run with the packages of this environment, but with the wheel's library."""
    environment = os.environ | {"PYTHONPATH": str(template.parent / "site")}
    environment.pop("PYTEST_XDIST_WORKER", None)
    return ran([sys.executable, *words], template, environment, 900)


def count_nodes(paths: list[Path]) -> int:
    return sum(1 for path in paths for _ in ast.walk(ast.parse(path.read_text())))


def test_template_is_small(template: Path) -> None:
    files = []
    for path in template.rglob("*"):
        if path.is_file() and not {".git", "__pycache__"} & set(path.parts):
            files.append(path)
    python = [path for path in files if path.suffix == ".py"]
    tests = [path for path in python if path.is_relative_to(template / "tests")]
    assert count_nodes([path for path in python if path not in tests]) <= MOST_PRODUCT_NODES
    assert count_nodes(tests) <= MOST_TEST_NODES
    assert len(files) <= MOST_FILES
    assert not (template / "workloads/library").exists()


def test_template_has_the_decisions_that_it_cites(template: Path) -> None:
    cited = set[str]()
    for path in template.rglob("*"):
        if path.suffix in {".py", ".md", ".yaml", ".toml"}:
            cited.update(re.findall(r"\bdecisions?[/ ](\d{4})", path.read_text()))
    assert cited == {path.name[:4] for path in (template / "infra/decisions").iterdir()}


def test_its_links_lead_to_files(template: Path) -> None:
    pages = []
    for page in template.rglob("*.md"):
        if ".venv" not in page.parts:
            pages.append(page)
    links = []
    for page in pages:
        for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            links.append((page, link))
    assert links
    broken_links: list[str] = []
    for page, link in links:
        if not (page.parent / link).exists():
            broken_links.append(f"{page}: {link}")
    assert not broken_links


def test_template_imports_the_pinned_wheel_and_nothing_else(template: Path) -> None:
    lines = (template / "requirements/dev.txt").read_text().splitlines()
    (pin,) = [line for line in lines if "./vendor/" in line]
    assert "holdfast_gke-0.1.0-py3-none-any.whl --hash=sha256:" in pin
    code = (
        "import holdfast, infra.main, workloads.__main__; print(holdfast.__file__,"
        " infra.main.__file__)"
    )
    shown = run(template, "-c", code).stdout.split()
    assert len(shown) == 2
    for path in shown:
        assert Path(path).is_relative_to(template.parent), shown


@pytest.mark.parametrize(
    "words",
    [
        ("ruff", "format", "--check", "-q", "."),
        ("ruff", "check", "-q", "."),
        ("pytest", "-q", "-p", "no:xdist", "-m", tiers.TIERS["fast"].marks),
    ],
    ids=["format", "lint", "fast tests"],
)
def test_its_own_checks_and_tests_pass(template: Path, words: tuple[str, ...]) -> None:
    done = run(template, "-m", *words)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


def test_its_environment_plans_and_says_what_is_to_be_chosen(template: Path) -> None:
    planned = run(template, "-m", "infra", "plan", "acme", "--json")
    assert planned.returncode == 0, planned.stderr
    checked = run(template, "-m", "infra", "check", "acme")
    assert checked.returncode == 1
    assert "CHANGE-ME" in checked.stdout


def test_a_folder_that_exists_is_refused_and_nothing_is_half_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    done = make(tmp_path / "there")
    assert done.returncode == 2
    assert "a folder that does not exist" in done.stderr
    wrong = make(tmp_path / "new", "--env", "No Name")
    assert wrong.returncode == 2
    assert "allowed:" in wrong.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
