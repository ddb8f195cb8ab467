"""One real plan per environment and session, for all workers of it."""

import json
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from holdfast.support.errors import Unjudged
from infra.ops.plan import plan
from tests import support

Plans = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def synthesize_plans(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[Path, Plans]]:
    """Returns a function: `synthesize_plans("example")` returns the folder of its stacks, and
    stack -> its plan as `terraform show -json` prints it.
    """

    folder = tmp_path_factory.getbasetemp()
    out = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "plans"

    @cache
    def of(environment: str) -> tuple[Path, Plans]:
        file = out / f"{environment}.json"
        with support.lock(file.with_suffix(".lock")):
            if not file.exists():
                paths = _read_plan(environment, out)
                names = {stack: str(path) for stack, path in paths.items()}
                file.write_text(json.dumps(names))
        plans = {}
        for stack, path in json.loads(file.read_text()).items():
            plans[stack] = json.loads(Path(path).read_text())
        return out / environment / "synth" / "stacks", plans

    return of


def lacks_provider(printed: str) -> bool:
    """Tell whether no mirror or registry has the provider, by the words of Terraform or
    OpenTofu.
    """
    return bool(re.search("Failed to (query available|resolve) provider packages", printed))


def _read_plan(environment: str, out: Path) -> dict[str, Path]:
    try:
        return plan(environment, out)
    except Unjudged as error:
        if lacks_provider(str(error)) or "no terraform" in str(error):
            support.unavailable(str(error).splitlines()[0])
        raise


@pytest.fixture(scope="session")
def load_plans(synthesize_plans: Callable[[str], tuple[Path, Plans]]) -> Callable[[str], Plans]:
    """Returns a function: `load_plans("example")` returns the plans alone."""
    return lambda environment: synthesize_plans(environment)[1]
