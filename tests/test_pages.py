"""Targets, commands and options on pages of the tree exist, and the site of the pages builds."""

import ast
import importlib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from textwrap import dedent
from threading import Thread

import pytest

from infra.environments import Environment, schema
from tests.cluster.sim.waiting import until
from tests.command_lines import APPS, find_command
from tests.infra.samples import EXAMPLE, make_hardened
from tests.support import ROOT, HttpServer, ran
from workloads.library.tests.report.chromium import binary, chromium

sys.path[:0] = [str(ROOT / ".ci/site"), str(ROOT / ".ci")]
pages = importlib.import_module("pages")
site_versions = importlib.import_module("site_versions")
_ALL_PAGES = ran(["git", "ls-files", "*.md"]).stdout.split()
PAGES = sorted(path for path in _ALL_PAGES if not path.startswith("tests/"))
STARTS = (*(f"python -m {name} " for name in APPS), "holdfast ")
CODE = re.compile(r"```(?:sh|bash|console)\n(.*?)```|`([^`\n]+)`", re.DOTALL)
MAKEFILES = [ROOT / "Makefile", ROOT / "workloads/library/library.mk"]
FOUND = "document.querySelectorAll('.md-search-result__item a').length"
MENU = "[...document.querySelectorAll('.md-version__link')].map(link => link.innerText)"
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


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("infra/docs/")])
def test_environment_settings_are_accepted(page: str) -> None:
    """Pages write settings as assignments to the names of fields."""
    budget = make_hardened().budget
    environment = replace(EXAMPLE, project_id="acme-ml-dev", budget=budget)
    for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        names = dict(vars(schema))
        exec(dedent(block), names)
        settings = {}
        for item in fields(Environment):
            if item.name in names:
                settings[item.name] = names[item.name]
        assert replace(environment, **settings)


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


def test_commands_page_has_whole_sentences() -> None:
    items = re.findall(r"^\* `[a-z-]+`: (.+)$", pages.commands(), re.M)
    assert len(items) > 50
    cut = [
        sentence for sentence in items if not sentence.endswith((".", ").")) or "..." in sentence
    ]
    assert cut == []


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
    words = [sys.executable, ROOT / ".ci/site/build.py", "--out-dir", out, "--versions"]
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


def test_published_site_has_each_release_and_begins_with_the_newest(tmp_path: Path) -> None:
    html = tmp_path / "html"
    for version in ("0.9.0", "0.10.0", "0.2.0"):
        page = html / "how-to/index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(version)
        packed = site_versions.pack_folder(html, tmp_path / "releases")
        packed.rename(packed.with_name(f"site-{version}.tar.gz"))
    out = tmp_path / "out"
    versions = site_versions.gather(tmp_path / "releases", out)
    assert versions == ["0.10.0", "0.9.0", "0.2.0"]
    for version in versions:
        assert (out / version / "how-to/index.html").read_text() == version
    menu = json.loads((out / "versions.json").read_text())
    assert [row["version"] for row in menu] == versions
    assert [row["aliases"] for row in menu] == [["latest"], [], []]
    assert 'url=0.10.0/index.html"' in (out / "index.html").read_text()


def test_a_site_without_releases_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        site_versions.gather(tmp_path, tmp_path / "out")
    assert end.value.code == 2
    assert "allowed: site-X.Y.Z.tar.gz of each release" in capsys.readouterr().err


@pytest.mark.browser
def test_its_search_finds_a_page_and_its_menu_another_version(
    site: Path,
    tmp_path: Path,
    require: Callable[[object, str], None],
) -> None:
    require(binary(), "chromium is not installed (make system-packages)")
    releases = tmp_path / "releases"
    packed = site_versions.pack_folder(site, releases)
    shutil.copyfile(packed, releases / "site-99.0.0.tar.gz")
    _, version = site_versions.gather(releases, tmp_path / "sites")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "sites"))
    with (
        HttpServer(("127.0.0.1", 0), handler) as server,
        chromium(tmp_path / "profile") as page,
    ):
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/{version}/index.html"
        page.open(f"{address}?q=grace+period")
        until("the search answers", lambda: page.evaluate(FOUND))
        until("the menu has both versions", lambda: page.evaluate(MENU) == ["99.0.0", version])
        assert page.complaints == []
        server.shutdown()
