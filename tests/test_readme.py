"""The README says what is there: its targets, its map, its generated table."""

import re
from pathlib import Path

import pytest

from infra.placement.matrix import markdown

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"make ([a-z][a-z-]*)", README))))
def test_every_make_target_of_the_readme_exists(target: str) -> None:
    assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"make {target} is in README.md but not in Makefile"


def test_every_make_target_that_a_message_or_a_page_names_exists() -> None:
    pages = [
        *ROOT.glob("*/**/*.md"),
        *(f for p in ("infra", "workloads", "monitoring", "tests") for f in (ROOT / p).rglob("*.py")),
    ]
    for page in pages:
        if ".venv" in page.parts or ".node" in page.parts:
            continue
        for target in re.findall(r"`make ([a-z][a-z-]+)", page.read_text()):
            assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"{page.relative_to(ROOT)} names make {target}"


def test_every_documented_target_is_phony_or_a_file() -> None:
    phony = set(" ".join(re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)).split())
    documented = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE))
    assert documented <= phony


def test_the_map_names_folders_that_exist() -> None:
    block = README.split("## Map")[1].split("```")[1]
    room = ""
    for line in filter(None, block.splitlines()):
        name = line.split()[0]
        if not name.endswith("/"):
            continue
        room = "" if not line.startswith(" ") else room
        assert (ROOT / room / name).is_dir(), f"{room}{name} of the README's map does not exist"
        room = name if not line.startswith(" ") else room


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target


DOORS = {
    "holdfast": "holdfast.commands",
    "infra": "infra.__main__",
    "workloads": "workloads.__main__",
    "monitoring": "monitoring.__main__",
}


@pytest.mark.parametrize(
    ("door", "verb"), sorted(set(re.findall(r"python -m (holdfast|infra|workloads|monitoring) ([a-z-]+)", README)))
)
def test_every_verb_of_the_readme_exists(door: str, verb: str) -> None:
    from importlib import import_module

    import typer

    commands = typer.main.get_command(import_module(DOORS[door]).app)
    assert verb in commands.commands, f"python -m {door} {verb}"  # type: ignore[attr-defined]


def test_the_environment_that_the_readme_makes_has_a_name_that_is_allowed() -> None:
    name = re.search(r"python -m infra new (\S+?)`", README)
    assert name and name.group(1).isidentifier()


def test_the_matrix_is_the_one_of_the_code() -> None:
    shown = README.split("<!-- matrix:begin -->")[1].split("<!-- matrix:end -->")[0].strip()
    assert shown == markdown(), "paste the output of `python -m infra matrix --markdown` between the markers"
