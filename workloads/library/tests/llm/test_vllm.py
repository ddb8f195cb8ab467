"""A service with a model on the real vLLM: probes, scalers, drains, and streams that move."""

import re
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from holdfast.vocabulary.serving import ROUTER_ENDED, ROUTER_MOVED
from workloads.library.tests.inference.router.fleet import Stream, complete, metric
from workloads.library.tests.inference.server.serving import Client
from workloads.library.tests.llm.pods import (
    SERVICE,
    Pod,
    render,
    running_pods,
    running_router,
)
from workloads.library.tests.llm.streams import (
    WORDS,
    count_handled,
    count_prompt,
    find_busiest,
    list_tokens,
    make_body,
    make_prompt,
    wait_for,
)
from workloads.library.tests.processes import until
from workloads.library.tests.services.example_services import find

# vLLM takes minutes to start on a busy machine, and the first time it is installed.
pytestmark = [pytest.mark.llm, pytest.mark.timeout(3600)]
COUNT = 400
"""Tokens of a stream."""
PREFIX_HITS = "vllm:prefix_cache_hits_total"


@pytest.fixture(scope="module")
def pods(home: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[list[Pod]]:
    with running_pods(tmp_path_factory.mktemp("pods"), home, model) as pods:
        yield pods


@pytest.fixture
def router(pods: list[Pod], tmp_path: Path) -> Generator[Client]:
    with running_router(tmp_path, pods) as client:
        yield client


def open_streams(client: Client, bodies: list[dict[str, Any]]) -> list[Stream]:
    streams = [Stream(client.port, body) for body in bodies]
    until(lambda: all(len(stream.payloads) > 20 for stream in streams), "the first tokens")
    return streams


def expect_whole(stream: Stream) -> None:
    wait_for([stream])
    stream.wait()
    assert stream.is_whole, stream.payloads[-1:]
    assert len(list_tokens(stream)) == stream.body["max_tokens"]
    *_, last, usage = stream.events
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["usage"]["completion_tokens"] == stream.body["max_tokens"]
    assert usage["usage"]["prompt_tokens"] == count_prompt(stream.body)


def measure_rate(pod: Pod) -> float:
    """Returns the tokens a second of one stream, on this machine as busy as it is."""
    body = make_body(99, 100)
    started = time.monotonic()
    expect_whole(Stream(pod.client.port, body).wait())
    return 100 / (time.monotonic() - started)


def test_pod_probes_follow_vllm(pods: list[Pod]) -> None:
    for pod in pods:
        assert pod.loading_status == 503, "while vLLM loaded"
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert pod.probe(name) == 200


def test_scalers_find_their_series(pods: list[Pod]) -> None:
    (group,) = find(render(), "AutoscalingMetric", "engines")["spec"]["metrics"]
    (container,) = group["pod"]["containers"]
    pod = pods[0]
    path = container["endpoint"]["path"]
    names = [entry["gauge"]["prometheusMetricName"] for entry in container["metrics"]]
    stream = Stream(pod.client.port, make_body(1, COUNT))
    until(lambda: pod.client.metric(names[0]) == 1, "a running request")
    text = pod.client.request("GET", path).body.decode()
    for name in names:
        assert len(re.findall(rf"^{name}\{{.*\}} [0-9.]+$", text, re.M)) == 1
    expect_whole(stream)
    until(lambda: pod.client.metric(names[0]) == 0, "an idle server")


def test_prefixes_are_cached_as_rendered(pods: list[Pod]) -> None:
    request = {"model": SERVICE.name, "prompt": make_prompt(2, 600), "max_tokens": 1}
    hits = []
    for _ in range(2):
        assert complete(pods[0].client, **request).status == 200
        hits.append(metric(pods[0].client, PREFIX_HITS))
    assert hits[1] - hits[0] > 300, "most of the second prompt"


def test_a_drained_pod_gives_its_streams_away(pods: list[Pod], router: Client) -> None:
    # Streams stay for 3 s, and leave within another one: the longest text is open then, up to
    # 2,000 tokens a second.
    body = make_body(3, SERVICE.context - WORDS)
    undisturbed = Stream(pods[0].client.port, body)
    expect_whole(undisturbed)
    (stream,) = open_streams(router, [body])
    busy = find_busiest(pods)
    hook = threading.Thread(target=busy.call_hook)
    hook.start()
    try:
        until(lambda: busy.probe("readinessProbe") == 503, "readiness ends with the hook")
        assert busy.probe("livenessProbe") == 200, "vLLM itself goes on"
        expect_whole(stream)
    finally:
        hook.join()
        busy.restart_sidecar()
    assert metric(router, ROUTER_MOVED, 'cause="drained"') == 1
    assert list_tokens(stream) == list_tokens(undisturbed)
    assert stream.text == undisturbed.text


def test_streams_go_on_after_their_pod_is_killed(pods: list[Pod], router: Client) -> None:
    count = int(4 * measure_rate(pods[0]))
    bodies = [make_body(10 + number, count) for number in range(6)]
    undisturbed = []
    for body in bodies:
        undisturbed.append(Stream(pods[0].client.port, body))
    for stream in undisturbed:
        expect_whole(stream)
    handled = {pod.folder: count_handled(pod) for pod in pods}
    streams = open_streams(router, bodies)
    victim = find_busiest(pods)
    victim.kill()
    pods.remove(victim)
    for stream in streams:
        expect_whole(stream)
        assert stream.headers["x-holdfast-stream"] == "carried"
    assert metric(router, ROUTER_MOVED) > 0
    assert metric(router, ROUTER_ENDED) == 0
    for stream, whole in zip(streams, undisturbed, strict=True):
        assert list_tokens(stream) == list_tokens(whole)
        assert stream.text == whole.text
    # A text that ended at the survivor passed each token to it once: in a prompt, or as its own.
    (survivor,) = pods
    work = count_handled(survivor).since(handled[survivor.folder])
    assert work.texts >= metric(router, ROUTER_MOVED)
    assert work.tokens == work.texts * (WORDS + count)


def test_vllm_ends_its_open_stream_after_sigterm(pods: list[Pod]) -> None:
    pod = pods[-1]
    count = int(2 * measure_rate(pod))
    assert pod.call_hook() == 200
    assert pod.probe("readinessProbe") == 503
    stream = Stream(pod.client.port, make_body(4, count))
    until(lambda: len(stream.payloads) > count // 2, "half of the text")
    pod.engine.terminate()
    expect_whole(stream)
    assert pod.engine.child.wait(60) == 0
