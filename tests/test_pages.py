"""Targets, commands and options on pages of the tree exist, and the site of the pages builds."""

import ast
import importlib
import os
import re
import shlex
import sys
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from threading import Thread

import pytest

from tests.cluster.sim.waiting import until
from tests.command_lines import APPS, find_command
from tests.support import ROOT, HttpServer, ran
from workloads.library.tests.report.chromium import binary, chromium

sys.path.insert(0, str(ROOT / ".ci/site"))
pages = importlib.import_module("pages")
_ALL_PAGES = ran(["git", "ls-files", "*.md"]).stdout.split()
PAGES = sorted(path for path in _ALL_PAGES if not path.startswith("tests/"))
STARTS = (*(f"python -m {name} " for name in APPS), "holdfast ")
CODE = re.compile(r"```(?:sh|bash|console)\n(.*?)```|`([^`\n]+)`", re.DOTALL)
MAKEFILES = [ROOT / "Makefile", ROOT / "workloads/library/library.mk"]
FOUND = "document.querySelectorAll('.md-search-result__item a').length"
TARGETS: set[str] = set()
for _makefile in MAKEFILES:
    TARGETS.update(re.findall(r"^([a-z-]+):", _makefile.read_text(), re.MULTILINE))


def read_typed_lines(page: str) -> list[str]:
    """Lines of code that somebody may type, continuation lines joined."""
    lines_typed: list[str] = []
    for block, inline in CODE.findall((ROOT / page).read_text()):
        text = (block or inline).replace("\\\n", " ")
        lines = [line.removeprefix("$ ").strip() for line in text.splitlines()]
        # `kubectl exec ... -- python -m holdfast ...` is also one of our commands.
        for line in lines:
            for part in (line, line.partition(" -- ")[2]):
                lines_typed.append(part)
    return lines_typed


def unknown(line: str) -> str:
    """The first option that does not exist; empty where all do."""
    words = [word for word in shlex.split(line, comments=True) if word]
    words = words[2:] if words[0] == "python" else words
    if len(words) < 2 or words[1].startswith("-"):
        return ""  # of a program as a whole
    command, rest = find_command(words)
    names = {"--help"}
    for parameter in command.params:
        names.update(parameter.opts, parameter.secondary_opts)
    rest = rest[: rest.index("--")] if "--" in rest else rest
    options = []
    for word in rest:
        if word.startswith("--"):
            options.append(word.partition("=")[0])
    return next((word for word in options if word not in names), "")


AGENTS = (ROOT / "AGENTS.md").read_text()
QUICK = re.findall(
    r"^(?:python|holdfast) .*?(?=  +#)",
    AGENTS.partition("## Before you commit")[0],
    re.M,
)


@pytest.mark.process
@pytest.mark.parametrize("line", QUICK)
def test_quick_command_in_agents_page_runs(line: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = ran(line.split(), ROOT, os.environ | {"PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr


def test_rooms_in_agents_page_exist() -> None:
    folders = re.findall(r"`([a-z/]+/)`", AGENTS.partition("## Rooms\n")[2].partition("\n## ")[0])
    assert len(QUICK) >= 5
    assert len(folders) > 10
    names = [name for name in folders if not (ROOT / name).is_dir()]
    assert names == []


@pytest.mark.parametrize("page", PAGES)
def test_names_on_pages_exist(page: str) -> None:
    for line in read_typed_lines(page):
        if line.startswith("make "):
            target = line.split()[1]
            if re.fullmatch(r"[a-z-]+", target):
                assert target in TARGETS, f"{page}: {line}"
        # Alternatives in a sentence are no command line.
        has_alternatives = re.search(r"\||\.\.\.|{|\[", line)
        if line.startswith(STARTS) and not has_alternatives:
            option = unknown(line)
            assert not option, f"{page}: {line}: {option}"


@pytest.mark.parametrize("page", [*PAGES, "tests/README.md"])
def test_a_link_in_the_tree_leads_to_a_file(page: str) -> None:
    # The template's page is its README.
    folder = ROOT if page.startswith(".ci/template") else (ROOT / page).parent
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    assert [link for link in links if not (folder / link).exists()] == []


def test_a_link_to_what_is_no_page_becomes_its_text() -> None:
    text = (
        "[a](../infra/) [b](dev.py) [c](UPGRADING.md#x) [d](https://e.org) ![e](p.png)"
        " [f](UPGRADING.md)"
    )
    tracked = {"infra/README.md", "infra/UPGRADING.md", "infra/dev.py", "infra/p.png"}
    expected = (
        "[a](../infra/README.md) b [c](UPGRADING.md#x) [d](https://e.org) ![e](p.png)"
        " [f](UPGRADING.md)"
    )
    assert pages.fix_links(text, "infra/UPGRADING.md", tracked) == expected


@pytest.mark.parametrize(
    "page", ["README.md", "workloads/library/docs/explanation/what-you-get.md"]
)
def test_pictures_follow_the_site_palette(page: str) -> None:
    file = ROOT / page
    text = file.read_text()
    shown = pages.show_pictures_by_palette(text)
    assert "<picture>" in text
    assert "<source" not in shown
    for mode in ("light", "dark"):
        addresses = re.findall(rf'src="(\S+)#only-{mode}"', shown)
        assert len(addresses) == 1
        picture = file.parent / addresses[0]
        assert picture.is_file()


def test_list_steps_keep_their_code_on_the_site() -> None:
    lines = [
        "1. First:",
        "",
        "   ```sh",
        "   make a",
        "   ```",
        "",
        "2. Second.",
        "   More.",
        "",
        "End.",
        "   not a step",
        "",
    ]
    text = "\n".join(lines)
    indented = text.replace("   ", "    ").replace("    not", "   not")
    assert pages.indent_steps(text) == indented


def test_pins_page_has_the_pins_in_use() -> None:
    rows = re.findall(
        r"^\| [^|]+ \| `([^`]+)` \| `([^`]+)` \|",
        (ROOT / "infra/docs/reference/pins.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) >= 8
    for pin, file in rows:
        assert pin in (ROOT / file).read_text(), f"{file} no longer has {pin}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    words = [sys.executable, ROOT / ".ci/site/build.py", "--out-dir", out]
    done = ran(words, ROOT, os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stdout + done.stderr
    return out / "html"


@pytest.mark.process
def test_the_site_builds_without_a_broken_link(site: Path) -> None:
    reference = (site / "reference/library.html").read_text()
    assert "holdfast.checkpoint.Checkpointer.tick" in reference
    names = []
    for name in pages.PUBLIC_NAMES:
        if f'id="{name}"' not in reference:
            names.append(name)
    assert names == []


def test_site_menu_lists_every_docs_page() -> None:
    menu = (ROOT / ".ci/site/mkdocs.yml").read_text()
    missing = []
    for page in PAGES:
        if "/docs/" in page and f" {page}\n" not in menu:
            missing.append(page)
    assert missing == []


def find_docstring(name: str) -> str:
    """Read it from the source: some modules import packages that are not installed."""
    module, _, own_name = name.rpartition(".")
    if module == "holdfast.checkpoint":
        home = importlib.import_module(module)._HOME.get(own_name, "errors")
        module = f"{module}.{home}"
    file = ROOT / "workloads/library" / module.replace(".", "/")
    source = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == own_name:
            return ast.get_docstring(node) or ""
    raise LookupError(f"{source} has no {own_name}")


def list_public_names() -> list[str]:
    names = importlib.import_module("holdfast.checkpoint").__all__
    return [f"holdfast.checkpoint.{name}" for name in names] + [*pages.PUBLIC_NAMES]


@pytest.mark.parametrize("name", list_public_names())
def test_each_public_name_has_an_example(name: str) -> None:
    lines = find_docstring(name).partition("\nArgs:")[0].splitlines()
    code = []
    for line in lines:
        if line.startswith("    ") or not line:
            code.append(line.removeprefix("    "))
    ast.parse("\n".join(code))
    assert re.search(rf"\b{name.rpartition('.')[2]}\b", "\n".join(code)), "then: an example"


def test_pages_import_public_names_only() -> None:
    public = {*list_public_names(), "holdfast.checkpoint", "holdfast.manifests.envoy.CLUSTER"}
    for page in PAGES:
        text = (ROOT / page).read_text()
        for module, names in re.findall(r"^from (holdfast[\w.]*) import ([\w, ]+)$", text, re.M):
            assert {f"{module}.{name.strip()}" for name in names.split(",")} <= public, page


@pytest.mark.browser
def test_its_search_finds_a_page(
    site: Path,
    tmp_path: Path,
    require: Callable[[object, str], None],
) -> None:
    require(binary(), "chromium is not installed (make system-packages)")
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with (
        HttpServer(("127.0.0.1", 0), handler) as server,
        chromium(tmp_path / "profile") as page,
    ):
        Thread(target=server.serve_forever, daemon=True).start()
        page.open(f"http://127.0.0.1:{server.server_port}/index.html?q=grace+period")
        until("the search answers", lambda: page.evaluate(FOUND))
        assert page.complaints == []
        server.shutdown()
