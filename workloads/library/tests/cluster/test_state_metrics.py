"""kube-state-metrics and the API server's own metrics: the names that monitoring uses."""

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_kubernetes.providers.base import AClusterManager

from holdfast.vocabulary.pools import Pool
from tests import support
from tests.cluster.sim.processes import Processes, free_ports
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.tools.build import TOOLS

ROOT = Path(__file__).parents[4]
FOREIGN = re.compile(r"\b(?:kube|apiserver|etcd|scheduler|workqueue)_[a-z0-9_]+")


@pytest.fixture
def metrics_url(cluster: AClusterManager, tmp_path: Path) -> Iterator[str]:
    tool = TOOLS["kube-state-metrics"]
    support.require(tool.binary.exists(), "`make tools` has not built kube-state-metrics")
    port, own_port = free_ports(2)
    processes = Processes(tmp_path)
    flags = {
        "kubeconfig": cluster.kubeconfig,
        "host": "127.0.0.1",
        "port": port,
    }
    flags |= {"telemetry-host": "127.0.0.1", "telemetry-port": own_port}
    processes.start(
        tool.name, [tool.binary, *(f"--{name}={value}" for name, value in flags.items())]
    )
    url = f"http://127.0.0.1:{port}/metrics"
    processes.wait_until("kube-state-metrics answers", lambda: bool(text(url)))
    yield url
    processes.stop()


def text(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.read().decode()
    except OSError:
        return ""


def list_families(exposed: str) -> set[str]:
    """Lists every family, also those of which this cluster has no object, with the suffixes of
    histograms.
    """
    families = re.findall(r"^# TYPE (\S+) (\S+)$", exposed, re.MULTILINE)
    names: set[str] = set()
    for name, kind in families:
        names.add(name)
        if kind == "histogram":
            names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return names


def list_monitored_names() -> set[str]:
    """Lists names of Kubernetes' own metrics in queries of alerts, dashboards, the runbook and the
    planned stacks.
    """
    places = [*ROOT.glob("monitoring/**/*.py"), *ROOT.glob("monitoring/**/*.md")]
    places += ROOT.glob("tests/snapshots/plan/*/monitoring-*.yaml")
    assert len(places) > 10
    names: set[str] = set()
    for path in places:
        names.update(FOREIGN.findall(path.read_text()))
    return names


def test_every_name_that_monitoring_uses_is_exposed_by_the_real_components(
    metrics_url: str,
    cluster: AClusterManager,
    world: World,
    spot: Pool,
) -> None:
    # a family is exported once there is an object that has it
    world.create_pod("lonely", world.pod_template(spot))
    until(
        "every kind of object is listed",
        lambda: "kube_pod_status_unschedulable" in list_families(text(metrics_url)),
    )
    api_server = str(cluster.kubectl(["get", "--raw=/metrics"], as_dict=False))
    names = list_families(text(metrics_url)) | list_families(api_server)
    assert "apiserver_request_total" in names
    assert "kube_pod_status_unscheduled" not in names, "a misspelled name would be found"
    assert list_monitored_names() <= names
