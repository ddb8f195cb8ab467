"""One real plan per environment and session."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from holdfast.contract.errors import Unjudged
from infra.ops.plan import plan
from tests import support

Plans = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def synthesised(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Plans]]:
    """`synthesised("example")`: the folder of its stacks, and stack -> its plan in `terraform show -json` form."""

    @cache
    def of(environment: str) -> tuple[Path, Plans]:
        out = tmp_path_factory.mktemp("plan")
        try:
            files = plan(environment, out)
        except Unjudged as error:
            if "Failed to query available provider packages" in str(error) or "no terraform" in str(error):
                support.unavailable(str(error).splitlines()[0])
            raise
        plans = {stack: json.loads(Path(file).read_text()) for stack, file in files.items()}
        return out / environment / "synth" / "stacks", plans

    return of


@pytest.fixture(scope="session")
def planned(synthesised: Callable[[str], tuple[Path, Plans]]) -> Callable[[str], Plans]:
    """`planned("example")`: the plans alone."""
    return lambda environment: synthesised(environment)[1]
