"""The commands of jobs with services: `list`, `logs`, `explain` and `stop`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from typer.testing import CliRunner, Result

from holdfast.clients.api import Object
from holdfast.commands import app
from holdfast.platform.cluster import PATH
from holdfast.services.replica_start import find_newest_start
from holdfast.support.errors import InputError
from holdfast.vocabulary.serving import CACHE_FETCHER
from tests import platforms
from workloads.library.tests.http_server import answering
from workloads.library.tests.jobs.api_server import write_kubeconfig
from workloads.library.tests.services import example_services

FOLDERS = {
    "Service": "/api/v1/namespaces/serving/services",
    "Deployment": "/apis/apps/v1/namespaces/serving/deployments",
    "Pod": "/api/v1/namespaces/serving/pods",
}
EVERYWHERE = {
    "/apis/apps/v1/deployments": "Deployment",
    "/api/v1/pods": "Pod",
}


def make_pod(deployment: Object) -> Object:
    """Returns a pod of a Deployment, which runs."""
    template = deployment["spec"]["template"]
    name = f"{deployment['metadata']['name']}-x"
    metadata = {
        "name": name,
        "namespace": "serving",
        "uid": name,
        "creationTimestamp": "2026-11-28T00:00:00Z",
        "labels": template["metadata"]["labels"],
    }
    state = {
        "name": "main",
        "restartCount": 0,
        "state": {"running": {"startedAt": "2026-11-28T00:02:10Z"}},
    }
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastTransitionTime": "2026-11-28T00:01:30Z",
    }
    ready = {
        "type": "Ready",
        "status": "True",
        "lastTransitionTime": "2026-11-28T00:05:00Z",
    }
    status = {
        "phase": "Running",
        "startTime": metadata["creationTimestamp"],
        "containerStatuses": [state],
        "conditions": [scheduled, ready],
    }
    return {"metadata": metadata, "spec": template["spec"], "status": status}


class Cluster:
    """An API server that holds the example services, with one pod for each Deployment."""

    def __init__(self) -> None:
        self.objects: dict[str, list[Object]] = {}
        for kind in FOLDERS:
            self.objects[kind] = []
        for name in example_services.NAMES:
            for body in example_services.render(example_services.read(name)):
                if body["kind"] == "Deployment":
                    body["metadata"] |= {"uid": body["metadata"]["name"], "generation": 1}
                    body["spec"]["replicas"] = 3
                    body["status"] = {"readyReplicas": 2, "updatedReplicas": 3}
                    self.objects["Pod"].append(make_pod(body))
                if body["kind"] in self.objects:
                    self.objects[body["kind"]].append(body)

    def answer(self, url: str, headers: object, body: bytes) -> tuple[int, object]:
        path, _, query = url.partition("?")
        if path == PATH:
            return 200, platforms.make_config_map(platforms.load("example"))
        if path.endswith("/log"):
            return 200, f"hello from {path.split('/')[-2]}\n".encode()
        for kind, folder in FOLDERS.items():
            if path == folder or EVERYWHERE.get(path) == kind:
                (selector,) = parse_qs(query).get("labelSelector", [""])
                items = []
                for item in self.objects[kind]:
                    if has_labels(item, selector):
                        items.append(item)
                return 200, {"metadata": {}, "items": items}
            for item in self.objects[kind]:
                if path == f"{folder}/{item['metadata']['name']}":
                    return 200, item
        if path.endswith(("/jobs", "/jobsets", "/workloads", "/horizontalpodautoscalers")):
            return 200, {"metadata": {}, "items": []}
        return 404, {"message": "not found"}


def has_labels(item: Object, selector: str) -> bool:
    key, _, value = selector.partition("=")
    label = item["metadata"].get("labels", {}).get(key)
    return not key or (label == value if value else label is not None)


@pytest.fixture
def holdfast(tmp_path: Path) -> Iterator[Callable[..., Result]]:
    """Runs a command with the example services."""
    with answering(Cluster().answer) as address:
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", address)

        def run(*words: str) -> Result:
            return CliRunner().invoke(app, [*words, "--kubeconfig", str(kubeconfig)])

        yield run


def test_list_shows_each_service_once(holdfast: Callable[..., Result]) -> None:
    result = holdfast("list")
    assert result.exit_code == 0, f"{result.output} {result.exception}"
    head, *lines = [line.split() for line in result.stdout.splitlines()]
    assert head == ["SERVICE", "SERVES", "BASE", "OVERFLOW", "ADDRESS"]
    address = "http://{}.serving.svc.cluster.local:8080"
    assert lines == [
        ["assistant", "gs://acme-models/qwen2.5-7b", "2/3", "2/3", address.format("assistant")],
        ["chat", "gs://acme-models/llama-3-8b", "2/3", "2/3", address.format("chat")],
        ["drafts", "gs://acme-models/qwen2.5-7b", "2/3", "-", address.format("drafts")],
        ["scores", "entropy", "2/3", "2/3", address.format("scores")],
    ]
    body = json.loads(holdfast("list", "--json").stdout)
    assert body["jobs"] == []
    names = [service["name"] for service in body["services"]]
    assert names == list(example_services.NAMES)


def test_logs_show_every_server(holdfast: Callable[..., Result]) -> None:
    result = holdfast("logs", "chat")
    assert result.exit_code == 0, f"{result.output} {result.exception}"
    names = ("chat-base-x", "chat-overflow-x")
    assert result.stdout.splitlines() == [f"[{name}] hello from {name}" for name in names]


@pytest.mark.parametrize("part", ["chat-router", "chat-proxy", "scores-base"])
def test_logs_and_explain_know_each_deployment(part: str, holdfast: Callable[..., Result]) -> None:
    assert holdfast("logs", part).stdout == f"hello from {part}-x\n"
    explained = holdfast("explain", part)
    assert explained.exit_code == 0, f"{explained.output} {explained.exception}"
    assert "state:" in explained.stdout


def test_explain_names_the_routers(holdfast: Callable[..., Result]) -> None:
    lines = holdfast("explain", "chat").stdout
    assert "chat-router: 2 of 3 ready" in lines
    assert "why: holdfast explain chat-router" in lines


def test_explain_says_what_a_start_took(holdfast: Callable[..., Result]) -> None:
    lines = holdfast("explain", "chat").stdout
    for part in ("chat-base", "chat-overflow"):
        assert (
            f"{part}-x was ready after 300 s: 90 s until it had a node, 40 s for images and"
            " sidecars, 170 s to load the model"
        ) in lines
    starts = json.loads(holdfast("explain", "scores", "--json").stdout)["starts"]
    assert starts["scores-base"]["load_s"] == 170
    assert "scores-proxy" not in starts


def test_fetched_kernels_are_counted_apart() -> None:
    body = example_services.render(example_services.read("chat"))
    pod = make_pod(example_services.find(body, "Deployment", "chat-base"))
    end = {
        "startedAt": "2026-11-28T00:01:40Z",
        "finishedAt": "2026-11-28T00:01:52Z",
    }
    fetcher = {"name": CACHE_FETCHER, "state": {"terminated": end}}
    start = find_newest_start([set_status(pod, initContainerStatuses=[fetcher])])
    assert start is not None
    assert start.cache_s == 12
    assert start.image_s == 28
    assert start.total_s == 300
    assert "28 s for images and sidecars, 12 s for compiled kernels, 170 s to load" in str(start)


def set_status(pod: Object, **changes: object) -> Object:
    return pod | {"status": pod["status"] | changes}


def test_restarted_replicas_are_not_measured() -> None:
    """A restarted server started long after its images were there."""
    body = example_services.render(example_services.read("chat"))
    pod = make_pod(example_services.find(body, "Deployment", "chat-base"))
    (state,) = pod["status"]["containerStatuses"]
    waiting = {"name": "main", "state": {"waiting": {}}}
    unmeasured_pods = [
        set_status(pod, conditions=[]),
        set_status(pod, containerStatuses=[state | {"restartCount": 1}]),
        set_status(pod, containerStatuses=[waiting]),
    ]
    for unmeasured in unmeasured_pods:
        assert find_newest_start([unmeasured]) is None
    start = find_newest_start([*unmeasured_pods, pod])
    assert start is not None
    assert start.total_s == 300


def test_the_newest_replica_counts() -> None:
    body = example_services.render(example_services.read("chat"))
    pod = make_pod(example_services.find(body, "Deployment", "chat-base"))
    metadata = pod["metadata"] | {
        "name": "newer",
        "creationTimestamp": "2026-11-28T00:01:00Z",
    }
    newer_pod = pod | {"metadata": metadata}
    start = find_newest_start([pod, newer_pod])
    assert start is not None
    assert start.pod == "newer"
    assert start.node_s == 30


def test_stop_asks_first_and_services_have_no_now(holdfast: Callable[..., Result]) -> None:
    error = holdfast("stop", "chat", "--now", "--yes").exception
    assert isinstance(error, InputError)
    assert error.fix == "holdfast stop chat"
    error = holdfast("stop", "nothing", "--yes").exception
    assert isinstance(error, InputError)
    assert error.what == "no such job"
    assert holdfast("stop", "chat").exit_code != 0
