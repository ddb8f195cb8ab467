"""Imports go one way. The table is the design; a new arrow is a decision."""

import ast
import builtins
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.layers import CONTRACT, FACES, INSIDERS, LIBRARY, MAY_IMPORT, MOST_MODULES, PACKAGES, ROOT


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return next((r for n in range(len(parts), 0, -1) if (r := ".".join(parts[:n])) in MAY_IMPORT), None)


def ours(module: str) -> bool:
    return module.split(".")[0] in PACKAGES


@cache
def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from infra import cdk` imports the module infra.cdk
            full = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {full[name] if is_module(full[name]) else node.module for name in full}
    return {m for m in found if ours(m)}


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """At any depth. Not what is in expressions, which are most of a tree."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, part, ())
        for child in inner if isinstance(inner, list) else ():
            yield child
            yield from statements(child)


@cache
def folder_of(package: str) -> Path:
    """Also of the library where it is installed, and not part of the checkout."""
    spec = find_spec(package)
    assert spec and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


@cache
def is_module(name: str) -> bool:
    package, _, rest = name.partition(".")
    if package not in PACKAGES:
        return False
    path = folder_of(package) / rest.replace(".", "/")
    return path.is_dir() or path.with_name(f"{path.name}.py").is_file()


def modules() -> list[tuple[str, Path]]:
    files = [f for p in PACKAGES[1:] for f in sorted((ROOT / p).rglob("*.py")) if not f.is_relative_to(LIBRARY)]
    return [(dotted(f, ROOT), f) for f in files] + [
        (dotted(f, LIBRARY), f) for f in sorted((LIBRARY / "holdfast").rglob("*.py"))
    ]


def dotted(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def not_allowed(module: str, imported: set[str]) -> str | None:
    """What is wrong with what `module` imports."""
    room = room_of(module)
    if room is None:
        return None if module in PACKAGES and not imported else f"{module} stands in no room of the table"
    allowed = MAY_IMPORT[room] | {room}
    wrong = {m for m in imported if not any(m == a or m.startswith(a + ".") for a in allowed)}
    return f"{module} (room {room}) must not import {sorted(wrong)}; allowed: {sorted(allowed)}" if wrong else None


def test_modules_import_only_what_their_rooms_may() -> None:
    found = [wrong for module, path in modules() if (wrong := not_allowed(module, imports(path)))]
    assert not found, "\n".join(found)


def test_a_wrong_import_is_found_wherever_it_stands(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import os, infra.main\ndef f(x=lambda: 1):\n if x:\n  try: from infra import cdk\n  finally: pass\n"
        "match 1:\n case 1:\n  with f() as g:\n   from monitoring.stack import X\n"
        "try: pass\nexcept OSError:\n import holdfast.clients.api as api\n"
    )
    imported = imports(tmp_path / "a.py")
    assert imported == {"infra.main", "infra.cdk", "monitoring.stack", "holdfast.clients.api"}
    assert "must not import ['infra.cdk', " in (not_allowed("infra.specs.pools", imported) or "")
    assert not_allowed("infra", {"infra.cdk"}) == "infra stands in no room of the table"
    assert not_allowed("infra", set()) is None


def behind_a_face(path: Path, imported: set[str]) -> list[str]:
    """Inner modules of rooms that have a face, imported from outside of them."""
    inside = str(path.relative_to(LIBRARY)) if path.is_relative_to(LIBRARY) else str(path)
    return [
        f"{path} must not import {module}; public are {sorted(face)}"
        for room, face in FACES.items()
        for module in sorted(imported)
        if module.startswith(f"{room}.") and module not in face
        if not inside.startswith((room.replace(".", "/"), *(f"tests/{part}" for part in INSIDERS[room])))
    ]


def test_others_import_public_modules_only() -> None:
    paths = {path for _, path in modules()} | {*(ROOT / "tests").rglob("*.py"), *(LIBRARY / "tests").rglob("*.py")}
    # Most files name no such room, and need no parser.
    near = [path for path in sorted(paths) if any(room in path.read_text() for room in FACES)]
    found = [wrong for path in near for wrong in behind_a_face(path, imports(path))]
    assert not found, "\n".join(found)


def test_an_import_behind_a_face_is_found() -> None:
    inner = {"holdfast.checkpoint.save.writer"}
    assert behind_a_face(LIBRARY / "holdfast/training/rank.py", inner)
    assert behind_a_face(LIBRARY / "tests/training/test_cli.py", inner)
    assert not behind_a_face(LIBRARY / "tests/checkpoint/test_cli.py", inner)
    assert not behind_a_face(LIBRARY / "holdfast/training/rank.py", {"holdfast.checkpoint.stores"})


def test_no_folder_of_a_room_with_a_face_holds_many_modules() -> None:
    for room in FACES:
        top = LIBRARY / room.replace(".", "/")
        for folder in (top, *(path for path in top.rglob("*") if path.is_dir())):
            assert len(list(folder.glob("*.py"))) <= MOST_MODULES, folder


def bases_by_class() -> dict[str, set[str]]:
    """Classes of the library by name, with the names of their bases; a name that is used twice has the bases of both."""
    found: dict[str, set[str]] = {}
    for path in (LIBRARY / "holdfast").rglob("*.py"):
        for node in statements(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(ast.unparse(base).split(".")[-1] for base in node.bases)
    return found


def is_exception(name: str) -> bool:
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, Exception)


def rootless(classes: dict[str, set[str]]) -> list[str]:
    """Exceptions that no `except HoldfastError` takes. What is no Exception, as SystemExit, has no part in it."""
    rooted = {"HoldfastError"}
    while more := {name for name, bases in classes.items() if bases & rooted} - rooted:
        rooted |= more
    return sorted(name for name, bases in classes.items() if any(map(is_exception, bases)) and name not in rooted)


@pytest.mark.skipif(not LIBRARY.is_dir(), reason="the library is installed, not part of this checkout")
def test_every_exception_of_the_library_has_one_root() -> None:
    classes = bases_by_class()
    assert {"InputError", "Unjudged", "StorageError", "BatchError", "GroupLost"} <= classes.keys()
    assert not rootless(classes), "derive them from holdfast.contract.errors.HoldfastError"
    assert rootless({"HoldfastError": {"Exception"}, "A": {"HoldfastError", "ValueError"}, "B": {"OSError"}}) == ["B"]


def test_contract_needs_the_standard_library_only() -> None:
    import sys

    for path in sorted([*(ROOT / "infra/contract").glob("*.py"), *(LIBRARY / "holdfast/contract").glob("*.py")]):
        for node in statements(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names or name.startswith((CONTRACT, "infra.contract")), (
                    path,
                    name,
                )
