"""A pod that waits for a host outside its namespace's egress: `explain` names the host."""

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.clients.api import Api
from holdfast.jobs.diagnose.closed_hosts import find_closed_host
from holdfast.jobs.diagnose.explain import explain
from holdfast.platform.egress import admits
from holdfast.support.errors import Unjudged
from tests import platforms
from workloads.library.tests.jobs.api_server import serving
from workloads.library.tests.jobs.test_one_answer import running_job

OPEN = ("huggingface.co", "*.wandb.ai", "203.0.113.0/24")
SAID = {
    "requests": (
        "requests.exceptions.ConnectTimeout:"
        " HTTPSConnectionPool(host='data.example.org', port=443):"
        " Max retries exceeded with url: /x (Caused by ConnectTimeoutError(<urllib3...>,"
        " 'Connection to data.example.org timed out. (connect timeout=10)'))"
    ),
    "curl": "curl: (28) Failed to connect to data.example.org port 443 after 134 ms: Timeout",
    "Go": 'Get "https://data.example.org/v1": dial tcp 198.51.100.4:443: i/o timeout',
    "httpx": "httpx.ConnectTimeout: timed out while requesting https://data.example.org/v1",
    "pip": (
        "WARNING: Retrying after connection broken by 'ConnectTimeoutError(<...>, 'Connection to"
        " data.example.org timed out. (connect timeout=15)')': /simple/torch/"
    ),
}


@pytest.mark.parametrize("client", SAID)
def test_host_is_found_in_what_clients_say(client: str) -> None:
    assert find_closed_host(f"loading data\n{SAID[client]}\n", OPEN) == "data.example.org"
    assert find_closed_host(SAID[client], (*OPEN, "data.example.org")) == ""


def test_an_open_host_that_is_down_is_no_closed_one() -> None:
    text = "Connection to huggingface.co timed out. Connection to api.wandb.ai timed out."
    assert find_closed_host(text, OPEN) == ""
    assert find_closed_host("Connection to storage.googleapis.com timed out.", ()) == ""
    assert find_closed_host("step 3 loss 0.1", ()) == ""


def test_star_stands_for_one_level() -> None:
    assert admits(OPEN, "API.wandb.ai")
    assert admits((), "us-docker.pkg.dev")
    assert not admits(OPEN, "wandb.ai")
    assert not admits(OPEN, "a.b.wandb.ai")
    assert not admits(("huggingface.co",), "cdn.huggingface.co")


def test_explain_names_the_closed_host_and_who_opens_it(tmp_path: Path) -> None:
    """The pod runs, and waits in vain; once the host is open, nothing blocks."""
    closed = platforms.load("example")
    network = replace(closed.network, egress=("data.example.org",))
    lines = [("2026-11-28T12:00:00.000000000Z", SAID["requests"])]
    with serving(running_job("train"), tmp_path, {"train-0": lines}) as kubeconfig:
        api = Api(kubeconfig)
        cause = explain(api, "train", platform=closed).cause
        assert cause.reason == "egress"
        assert cause.blocker.startswith("train-0 waits for data.example.org, which pods of")
        assert 'adds "data.example.org" to egress' in cause.action
        assert cause.evidence.startswith("kubectl logs -n ")
        opened = explain(api, "train", platform=replace(closed, network=network)).cause
        assert opened.reason == "none"


def test_a_node_that_does_not_answer_ends_no_explanation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[object] = []

    def be_silent(_: object, path: str, **__: object) -> str:
        paths.append(path)
        raise Unjudged("the cluster does not answer", got="no answer within 60 s")

    monkeypatch.setattr(Api, "text", be_silent)
    lists = running_job("train")
    (pod,) = lists["/api/v1/pods"]
    other = pod | {"metadata": pod["metadata"] | {"name": "train-1", "uid": "other"}}
    lists["/api/v1/pods"].append(other)
    with serving(lists, tmp_path) as kubeconfig:
        cause = explain(Api(kubeconfig), "train", platform=platforms.load("example")).cause
    assert cause.reason == "none"
    assert len(paths) == 2, "one by each reader of logs: a silent node takes minutes"
