"""Code of a test inside a real run: a sitecustomize that acts when a module is about to be imported."""

from pathlib import Path


def before_import(folder: Path, module: str, code: str) -> dict[str, str]:
    """The environment of a run in whose processes `code` runs when `module` is about to be imported."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(
        "import sys, importlib.abc\n"
        f"CODE = {code!r}\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}:\n"
        "            sys.meta_path.remove(self)\n"
        "            exec(CODE, {})\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    return {"PYTHONPATH": str(folder)}


def holding(point: str, until: str) -> str:
    """Code for `before_import`: whoever reaches the named point marks it and goes on when `until` is true."""
    return (
        "import os, time\n"
        "from pathlib import Path\n"
        "import holdfast.checkpoint.failpoints as points\n"
        "from holdfast.runtime import shutdown as notices\n"
        "reach = points.failpoint\n"
        "def held(name):\n"
        f"    if name == {point!r}:\n"
        f"        Path(__import__('sitecustomize').__file__).with_name(f'{point}-{{os.getpid()}}').touch()\n"
        f"        while not ({until}):\n"
        "            time.sleep(0.01)\n"
        "    reach(name)\n"
        "points.failpoint = held\n"
    )
