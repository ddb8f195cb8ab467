"""The library's part of the cluster tier: the fixtures, and so the clusters, are those of
tests/cluster.
"""

from pathlib import Path

import pytest

from tests.cluster.conftest import (  # noqa: F401
    _clients,
    api,
    cluster,
    exporter,
    jobset,
    k8s_manager,
    kueue,
    mover_account,
    no_job_outlives,
    platform,
    pytest_runtest_makereport,
    serving,
    spot,
    world,
)

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.k8s(cluster_name="holdfast", keep=True))
