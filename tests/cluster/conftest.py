"""Fixtures of the cluster tier: one cluster for the session of each worker, a namespace and nodes
of its own for each test.

`--k8s-provider=kind` (`make test-kind`) runs the same tests elsewhere.
"""

import sys
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from kubernetes import client, config

from holdfast.clients.api import Api
from holdfast.vocabulary.pools import Pool
from tests import platforms, support
from tests.cluster.sim import diagnosis, flex, kind, operators
from tests.cluster.sim.control_plane import missing_tools
from tests.cluster.sim.manager import HostManager, OwnManager
from tests.cluster.sim.runnable import HOST_FOLDERS
from tests.cluster.sim.world import World, end_jobs
from tests.cluster.test_rendered import GKE_ONLY
from tests.tools.build import TOOLS
from tests.workloads.manifests import rendered

HERE = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.k8s(cluster_name="holdfast", keep=True))
    yield
    # The walk watches the whole cluster: what another test leaves behind, a budget or a queued job,
    # would wake people in it. So the walk gets the cluster while it is new, and only the doctor
    # runs before it, because it begins with a cluster that is not set up. Each of two workers has
    # its own cluster, and gets one of the two files first.
    order = {"test_doctor.py": 0, "test_walkthrough.py": 1}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the cluster says next to the test that failed in it."""
    report = yield
    if report.failed:
        fixtures = getattr(item, "funcargs", {})
        api = fixtures.get("api")
        if api is not None:
            description = diagnosis.describe(api, fixtures["cluster"].host)
            report.sections.append(("cluster", description))
    return report


@pytest.fixture(autouse=True)
def no_job_outlives(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails the test whose job outlives it: its pods would take nodes of the tests that follow.

    It is set up before all other fixtures of the test, so it ends after them.
    """
    yield
    api = request.node.funcargs.get("api")
    if api is not None:
        names = end_jobs(api)
        assert not names, f"the test has left jobs behind: {', '.join(names)}"


@pytest.fixture(scope="session")
def k8s_manager(request: pytest.FixtureRequest) -> Callable[..., type[OwnManager]]:
    """Returns our manager of host processes; with `--k8s-provider=kind`, that of a kind cluster."""
    if request.config.getoption("k8s_provider") == "kind":
        support.require(not kind.missing(), kind.missing())
        kind.KindManager.mounts = HOST_FOLDERS
        return lambda name=None: kind.KindManager
    support.require(sys.platform == "linux", "the components of a control plane run on Linux only")
    missing = missing_tools()
    support.require(not missing, f"`make tools` has not built {', '.join(missing)}")
    return lambda name=None: HostManager


@pytest.fixture
def cluster(k8s: OwnManager) -> OwnManager:
    k8s.create()
    return k8s


@pytest.fixture(scope="session")
def _clients() -> dict[Path, Api]:
    return {}


@pytest.fixture
def api(cluster: OwnManager, _clients: dict[Path, Api]) -> Api:
    assert cluster.kubeconfig is not None
    return _clients.setdefault(cluster.kubeconfig, Api(cluster.kubeconfig))


@pytest.fixture
def world(api: Api, request: pytest.FixtureRequest) -> Iterator[World]:
    """A namespace, and nodes that only its pods may use; both go when the test ends."""
    test_world = World(api, f"t-{uuid.uuid4().hex[:8]}")
    test_world.create()
    yield test_world
    test_world.delete()


@pytest.fixture(scope="session")
def spot() -> Pool:
    """One Spot pool of the example environment."""
    return next(p for p in platforms.load("example").pools if p.name.startswith("spot-l4"))


@pytest.fixture(scope="session")
def serving() -> Pool:
    return platforms.load("example").pool("serving")


@pytest.fixture
def jobset(cluster: OwnManager, api: Api) -> None:
    """The cluster with the real JobSet controller."""
    _install(operators.JOBSET, cluster, api)


@pytest.fixture
def kueue(jobset: None, cluster: OwnManager, api: Api) -> None:
    """The cluster with the real JobSet and Kueue controllers; Kueue makes ProvisioningRequests,
    which nothing fulfills.
    """
    flex.install(api)
    _install(operators.KUEUE, cluster, api)


@pytest.fixture
def platform(kueue: None, api: Api) -> Generator[None]:
    """The platform half as it is rendered."""
    docs = []
    for doc in rendered.load_objects("example", "platform"):
        if doc["apiVersion"] not in GKE_ONLY:
            docs.append(doc)
    for doc in docs:
        api.apply(api.path_of(doc), doc)
    yield
    for doc in docs:
        if doc["kind"] in ("Deployment", "DaemonSet", "CronJob", "Job"):
            api.delete(api.path_of(doc), propagationPolicy="Background")


@pytest.fixture
def exporter(platform: None, cluster: OwnManager, api: Api) -> Generator[client.ApiClient]:
    yield from _as_account("exporter", cluster, api)


@pytest.fixture
def mover_account(platform: None, cluster: OwnManager, api: Api) -> Generator[client.ApiClient]:
    yield from _as_account("mover", cluster, api)


def _as_account(name: str, cluster: OwnManager, api: Api) -> Generator[client.ApiClient]:
    """Yields a client with the rendered service account of monitoring, and with its rights."""
    assert cluster.host
    account = f"/api/v1/namespaces/monitoring/serviceaccounts/{name}/token"
    token = api.create(account, {"spec": {"expirationSeconds": 86_400}})["status"]["token"]
    made = config.new_client_from_config(str(cluster.host.write_kubeconfig(name, {"token": token})))
    yield made
    made.rest_client.pool_manager.clear()


_installed: set[tuple[int, str]] = set()


def _install(operator: operators.Operator, cluster: OwnManager, api: Api) -> None:
    support.require(
        TOOLS[operator.name].binary.exists(), f"`make tools` has not built {operator.name}"
    )
    assert cluster.host
    if (id(cluster), operator.name) not in _installed:
        operators.install(operator, cluster.host, api)
        _installed.add((id(cluster), operator.name))
