"""Code of a test inside a real run: a sitecustomize that acts when a module is about to be
imported.
"""

from pathlib import Path


def before_import(folder: Path, module: str, code: str) -> dict[str, str]:
    """Returns the environment of a run in whose processes `code` runs when `module` is about to be
    imported.
    """
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


def replace_function(file: Path, name: str, code: str) -> tuple[str, str, str]:
    """Writes a program that runs `-m holdfast train run` with a function replaced, and returns the
    words that start it from a fork server.

    `code` defines `changed`, which replaces the function `name`, MODULE:FUNCTION, in every module
    that has imported it. The function itself is `good` there.
    """
    home, _, function = name.partition(":")
    file.write_text(
        "import importlib, os, runpy, sys\n"
        "sys.path[0] = os.getcwd()  # as with -m\n"
        "importlib.import_module('holdfast.training.trainer.launch')\n"
        f"good = getattr(importlib.import_module({home!r}), {function!r})\n"
        f"{code}\n"
        "for module in [m for key, m in sys.modules.items() if key.startswith('holdfast.')]:\n"
        f"    if vars(module).get({function!r}) is good:\n"
        f"        setattr(module, {function!r}, changed)\n"
        "runpy.run_module('holdfast', run_name='__main__', alter_sys=True)\n"
    )
    return str(file), "train", "run"


def waiting_before(step: int, gate: Path) -> str:
    """Returns code that defines `changed` for `good`, the function of the seed of a rank's step.

    It waits before that step until the file `gate` is there, or until its ballot for a stop is
    cast.
    """
    return (
        "import gc, time\n"
        "from pathlib import Path\n"
        "from holdfast.runtime.stop import StopAgreement\n"
        "def changed(*numbers):\n"
        f"    if len(numbers) == 3 and numbers[1] == {step}:\n"
        "        stops = [found for found in gc.get_objects() if type(found) is StopAgreement]\n"
        f"        gate = Path({str(gate)!r})\n"
        "        while not (gate.exists() or any(stop._ballot.is_frozen for stop in stops)):\n"
        "            time.sleep(0.01)\n"
        "    return good(*numbers)\n"
    )


def holding(point: str, marks: Path, until: str) -> str:
    """Returns code that defines `changed` for `good`, the failpoint.

    A process that reaches the named point marks it in the folder `marks`, and continues when
    `until` is true.
    """
    return (
        "import os, time\n"
        "from pathlib import Path\n"
        "from holdfast.runtime import shutdown as notices\n"
        "def changed(name):\n"
        f"    if name == {point!r}:\n"
        f"        Path({str(marks)!r}, f'{point}-{{os.getpid()}}').touch()\n"
        f"        while not ({until}):\n"
        "            time.sleep(0.01)\n"
        "    good(name)\n"
    )
