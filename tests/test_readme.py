"""README is short, and what it and the architecture page say of the tree is true: the main paths
exist and can be read in one go.
"""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from infra.environments.example import ENVIRONMENT

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ROOMS = ("infra", "workloads/library", "monitoring", "tests")
ARCHITECTURE = (ROOT / "infra/docs/explanation/architecture.md").read_text()
PATHS = re.findall(r"^\| ([^|]+) \| `([^`]+\.py)` \| `(\w+)` \|$", ARCHITECTURE, re.M)
MAX_LINES = 80


def test_the_six_main_paths_are_named() -> None:
    assert len(PATHS) == 6


@pytest.mark.parametrize(("path", "file", "function"), PATHS, ids=[row[0] for row in PATHS])
def test_main_path_is_one_readable_function(
    path: str,
    file: str,
    function: str,
) -> None:
    tree = ast.parse((ROOT / file).read_text())
    functions = []
    for n in ast.walk(tree):
        if isinstance(n, ast.FunctionDef) and n.name == function:
            functions.append(n)
    assert len(functions) == 1, f"architecture.md names {function} of {file}"
    assert (functions[0].end_lineno or 0) - functions[0].lineno < MAX_LINES


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_introduced_on_one_screen(room: str) -> None:
    assert len((ROOT / room / "README.md").read_text().splitlines()) <= 20


@pytest.mark.parametrize(
    "readme", [ROOT / room / "README.md" for room in ROOMS], ids=lambda p: p.parent.name
)
def test_a_room_begins_with_a_file_that_exists(readme: Path) -> None:
    for row in re.findall(r"^\| `([^`]+)`[^|]*\|[^|]*\| `([^`]+)` \|$", readme.read_text(), re.M):
        room, first = row
        assert (readme.parent / room / first).exists(), f"{room}{first}"


def test_the_map_names_only_folders_that_exist() -> None:
    block = ARCHITECTURE.split("## Map")[1].split("```")[1]
    room = ""
    for line in block.strip().splitlines():
        name = line.split()[0]
        room = name if not line.startswith(" ") else room
        path = name if name == room else room + name
        assert (ROOT / path).is_dir(), path


def test_cluster_set_up_matches_the_first_job_page() -> None:
    """workloads/library/tests/cluster/test_first_job_page.py runs that page's commands."""
    page = (ROOT / "workloads/library/docs/start/first-job.md").read_text().partition("## 2.")[0]
    shown = re.search(r"^make (operators-pin .*) ENV=eu && holdfast try$", README, re.M)
    assert shown
    assert shown[1].split() == re.findall(r"^make ([a-z-]+)", page, re.M)


def test_each_gap_that_is_named_has_its_paragraph() -> None:
    section = README.partition("\n## Not proven")[2]
    page = (ROOT / "tests/NOT_PROVEN.md").read_text()
    named = re.findall(r"^- \*\*(.+?)\*\*", section, re.M)
    explained = re.findall(r"^- \*\*(.+?)\*\*", page, re.M)
    assert named
    assert named == explained


def test_each_gap_says_what_would_prove_it() -> None:
    page = (ROOT / "tests/NOT_PROVEN.md").read_text()
    _, *gaps = re.split(r"^- ", page, flags=re.M)
    proofs = [re.findall(r"^  What would prove it: (.+)$", gap, re.M) for gap in gaps]
    for sentences in proofs:
        assert len(sentences) == 1, proofs
        assert len(sentences[0].split()) <= 25, proofs


def test_picture_shows_the_example_pools() -> None:
    for mode in ("light", "dark"):
        shown = (ROOT / f".github/pictures/cluster-{mode}.svg").read_text()
        for group in ENVIRONMENT.groups:
            assert f">{group.name}</text>" in shown, group.name
            assert group.machine_types[0] in shown, group.name
            nodes = len(group.machine_types)
            assert f"{group.min_nodes * nodes} to {group.max_nodes * nodes} nodes" in shown, (
                group.name
            )


def test_readme_is_short() -> None:
    assert len(README.split()) <= 900


def test_readme_says_what_set_up_downloads() -> None:
    shown = re.search(r"downloads ([\d.]+ GB)", README)
    assert shown
    assert f"{shown[1]} to download" in (ROOT / ".ci/bootstrap.py").read_text()


def test_readme_states_the_library_version() -> None:
    text = (ROOT / "workloads/library/pyproject.toml").read_text()
    version = tomllib.loads(text)["project"]["version"]
    assert re.findall(r"version (\d+\.\d+\.\d+)", README) == [version]
