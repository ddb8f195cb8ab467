"""A member of a team starts and removes a service, by the commands, under the member's own name."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes import config
from kubernetes.config import kube_config
from typer.testing import CliRunner, Result

from holdfast.clients.api import Api, Object
from holdfast.commands import app
from holdfast.manifests.render_context import RenderContext
from infra import describe
from infra.environments.teams import Team
from tests import platforms
from tests.cluster.sim import gke
from tests.cluster.sim.manager import OwnManager
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.cluster.test_platform import gke_kinds as gke_kinds
from tests.cluster.test_platform import platform_cleanup as platform_cleanup
from tests.infra.samples import two_teams
from workloads.library.tests.cluster.objects import list_names
from workloads.library.tests.services import example_services
from workloads.operators import platform

TEAM = Team(name="drive", members="drive@example.org", service_gpus=4)
SHARED = replace(
    describe.platform(replace(two_teams(), teams=(TEAM,)), {}),
    images=platforms.with_images("example").images,
)
DEPLOYMENTS = "/apis/apps/v1/namespaces/drive/deployments"
pytestmark = [
    pytest.mark.timeout(1_200),
    pytest.mark.usefixtures("kueue", "gke_kinds", "platform_cleanup"),
]


@pytest.fixture
def holdfast(
    api: Api,
    world: World,
    cluster: OwnManager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Result]:
    """Runs a command in an empty folder as a member of the team."""
    gke.install(api)
    list(platform.apply(api, RenderContext(SHARED)))
    world.add_nodes(SHARED.pool("system"), 3)
    world.add_nodes(SHARED.pool("serving"), 4)
    world.add_nodes(SHARED.pool("spot-l4-g2-standard-8"), 4)
    monkeypatch.chdir(tmp_path)
    connect = config.new_client_from_config

    def connect_as_member(*arguments: Any, **options: Any) -> Any:
        client = connect(*arguments, **options)
        client.set_default_header("Impersonate-User", "ana@example.org")
        client.set_default_header("Impersonate-Group", "drive@example.org")
        return client

    monkeypatch.setattr(config, "new_client_from_config", connect_as_member)
    # The client reads the variable KUBECONFIG when it is imported.
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(cluster.kubeconfig))

    def run(*words: str) -> Result:
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"{result.output} {result.exception}"
        return result

    return run


def is_ready(api: Api, name: str) -> bool:
    deployment = api.get(f"{DEPLOYMENTS}/{name}")
    replicas = deployment["spec"]["replicas"]
    return deployment.get("status", {}).get("readyReplicas") == replicas


def list_services(api: Api) -> list[str]:
    return list_names(api.items("/api/v1/namespaces/drive/services"))


def find_used(api: Api) -> Object:
    quota = api.get("/api/v1/namespaces/drive/resourcequotas/services")
    return quota.get("status", {}).get("used", {})


def test_a_member_starts_and_removes_a_service(holdfast: Callable[..., Result], api: Api) -> None:
    """Types the commands of the page, whose team has another name, and answers the questions."""
    written, sent, explained, stopped = example_services.read_commands(
        "holdfast new-service scores --predictor entropy --base 1 --set overflow_most=2"
    )
    holdfast(*written[:-1], "namespace=drive")
    result = holdfast(*sent, "--yes")
    assert "applied Deployment/scores-base" in result.stderr
    for part in ("base", "overflow", "proxy"):
        until(f"{part} is ready", lambda part=part: is_ready(api, f"scores-{part}"))
    until("its GPUs are counted", lambda: find_used(api).get("requests.nvidia.com/gpu") == "3")
    lines = holdfast(*explained).stdout
    assert "scores in drive serves entropy" in lines
    assert "http://scores.drive.svc.cluster.local:8080" in lines
    (line,) = re.findall(".*scores.*", holdfast("list").stdout)
    assert line.split()[:4] == ["scores", "entropy", "1/1", "2/2"]

    words = ["new-service", "more", "--predictor", "entropy", "--base", "2"]
    holdfast(*words, "--set", "namespace=drive")
    holdfast("submit", "more.yaml", "--yes")
    until("one of its two fits", lambda: "1 of 2 ready" in holdfast("explain", "more").stdout)
    assert "exceeded quota: services" in holdfast("explain", "more").stdout

    for words in (["stop", "more"], stopped):
        assert f"removed services/{words[1]}" in holdfast(*words, "--yes").stderr
    until("the services are gone", lambda: list_services(api) == [])
    until("their GPUs are free", lambda: find_used(api)["requests.nvidia.com/gpu"] == "0")
