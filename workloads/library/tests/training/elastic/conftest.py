"""Gangs of a test: forked from one process that has imported what their places need, and closed at
its end.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from workloads.library.tests.bench.gangs.resize_lane import CHILD as RESIZING_CHILD
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.elastic.gangs import CHILD, HSDP_CHILD, Gang
from workloads.library.tests.training.elastic.sharded_gangs import CHILD as SHARDED_CHILD

Make = Callable[..., Gang]


@pytest.fixture(scope="package")
def server() -> Iterator[ForkServer]:
    launchers = ["holdfast.commands", "holdfast.training.sharded.launcher"]
    with closing(
        ForkServer(
            [
                "torch._dynamo",
                CHILD,
                HSDP_CHILD,
                SHARDED_CHILD,
                RESIZING_CHILD,
                *launchers,
            ]
        )
    ) as server:
        yield server


@pytest.fixture
def make(tmp_path: Path, server: ForkServer) -> Iterator[Make]:
    with ExitStack() as stack:

        def gang(name: str = "gang", *, kind: Callable[..., Any] = Gang, **settings: Any) -> Any:
            gang = kind(tmp_path / name, server=server, **settings)
            stack.callback(gang.close)
            return gang

        yield gang
