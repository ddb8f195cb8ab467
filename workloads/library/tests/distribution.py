"""A distribution as pip leaves it: one module, and the dist-info folder with one entry point."""

from pathlib import Path


def install(folder: Path, name: str, source: str, group: str, point: str) -> None:
    """Writes the module and its entry point `point`: NAME = MODULE:OBJECT. The module's name is
    that of the distribution, with underscores.
    """
    (folder / f"{name.replace('-', '_')}.py").write_text(source)
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{point}\n")
