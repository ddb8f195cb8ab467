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
def planned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Plans]:
    """`planned("example")`: stack -> its plan in `terraform show -json` form."""

    @cache
    def of(environment: str) -> Plans:
        try:
            files = plan(environment, tmp_path_factory.mktemp("plan"))
        except Unjudged as error:
            if "Failed to query available provider packages" in str(error) or "no terraform" in str(error):
                support.unavailable(str(error).splitlines()[0])
            raise
        return {stack: json.loads(Path(file).read_text()) for stack, file in files.items()}

    return of
