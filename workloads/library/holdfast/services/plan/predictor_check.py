"""Loads a predictor in a process of its own, before machines are bought for it.

A module that is not on this machine is in the image only, and is not checked.
"""

import os
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from holdfast.services.file.service_file import ServiceSpec
from holdfast.support.errors import InputError

TIMEOUT_S = 60.0
_LAST_LINES = 3
_PROGRAM = """\
import sys
from holdfast.inference.predictor.spec import PredictorSpec, build
from holdfast.support.errors import InputError
try:
    predictor = build(PredictorSpec(name=sys.argv[1], model=sys.argv[2]))
    predictor.configuration, predictor.predict
    predictor.load()
except InputError as error:
    sys.exit(error.got)
"""


def check(service: ServiceSpec, folder: Path) -> list[str]:
    """Load the predictor if its module is in `folder` or installed, and return notes.

    Raises InputError if it does not load.
    """
    module, colon, function = service.predictor.partition(":")
    if not colon:
        return []
    top = module.partition(".")[0]
    if PathFinder.find_spec(top, [str(folder), *sys.path]) is None:
        return [f"{service.predictor} was not loaded here: {top} is in the image only"]
    paths = str(folder)
    if os.environ.get("PYTHONPATH"):
        paths += os.pathsep + os.environ["PYTHONPATH"]
    command = [sys.executable, "-c", _PROGRAM, service.predictor, service.folder]
    try:
        process = subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [f"{service.predictor} did not load here within {TIMEOUT_S:.0f} s"]
    if process.returncode == 0:
        return []
    lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
    reason = " ".join(lines[-_LAST_LINES:]).removeprefix(f"{service.predictor}: ")
    raise InputError(
        "the predictor does not load",
        got=f"{service.predictor}: {reason[:400]}",
        allowed="a function that returns an object with configuration, load and predict",
        fix=f'correct it; python -c "from {module} import {function}" shows an error of the import',
    )
