"""Streams through a router whose servers are killed, frozen, drained and replaced."""

import json
import signal
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.drill.serving.fleet import free_port
from holdfast.inference.proxy.endpoints import Endpoint, discovery, write
from holdfast.inference.proxy.rejection_sharing import RejectionSharer
from holdfast.inference.small_engine import model
from holdfast.vocabulary.serving import OVER_BUDGET, REJECTIONS_PATH
from workloads.library.tests.http_server import answering
from workloads.library.tests.inference.router.fleet import (
    CHAT,
    COMPLETIONS,
    HOST,
    Stream,
    complete,
    count_ready,
    engine,
    kill,
    make_text,
    metric,
    router,
)
from workloads.library.tests.inference.server.serving import Served
from workloads.library.tests.processes import MIB, until

pytestmark = pytest.mark.process
COUNT = 120
TOKENS_PER_S = 25.0
"""A stream takes so long that servers can be lost in it on a busy machine too."""
MOVED = "holdfast_router_moved_total"
NO_PAUSE_IS_A_HANG = ("--set", "hang_s=60")
"""Options with which a server that a busy machine pauses for a second is not lost."""


@pytest.fixture
def engines(tmp_path: Path) -> Generator[Callable[[int], list[Served]]]:
    """Starts engines, whose events carry two tokens now and then."""
    with ExitStack() as stack:

        def start(count: int) -> list[Served]:
            options = ("--pair-every", "5", "--shutdown-timeout", "0.5")
            servers: list[Served] = []
            for _ in range(count):
                server = engine(tmp_path, *options, tokens_per_s=TOKENS_PER_S)
                servers.append(stack.enter_context(server))
            return servers

        yield start


def open_streams(served: Served, count: int) -> list[Stream]:
    streams: list[Stream] = []
    for number in range(count):
        body = {
            "prompt": f"stream {number}",
            "max_tokens": COUNT,
            "ignore_eos": True,
        }
        body["stream_options"] = {"include_usage": True}
        streams.append(Stream(served.port, body))
    until(lambda: all(len(stream.payloads) > 5 for stream in streams), "the first events")
    return streams


def expect_whole(streams: list[Stream]) -> None:
    for number, stream in enumerate(streams):
        stream.wait()
        assert stream.is_whole, stream.payloads[-1:]
        assert stream.headers["x-holdfast-stream"] == "carried"
        assert stream.text == make_text(f"stream {number}", COUNT)
        *_, last, usage = stream.events
        assert last["choices"][0]["finish_reason"] == "length"
        assert usage["usage"]["completion_tokens"] == COUNT


def make_request(**fields: Any) -> bytes:
    content = json.dumps(fields | {"stream": True}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def busiest(servers: list[Served]) -> Served:
    return max(servers, key=lambda served: metric(served, "vllm:num_requests_running"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_streams_go_on_when_a_server_is_lost(
    tmp_path: Path, engines: Callable[[int], list[Served]], number: signal.Signals
) -> None:
    servers = engines(3)
    with router(tmp_path, servers=servers) as served:
        streams = open_streams(served, 12)
        busiest(servers).signal(number)
        expect_whole(streams)
        assert metric(served, MOVED) > 0
        assert metric(served, "holdfast_router_ended_total") == 0


def test_a_text_that_is_not_streamed_goes_on(
    tmp_path: Path, engines: Callable[[int], list[Served]]
) -> None:
    servers = engines(2)
    with router(tmp_path, servers=servers) as served, ExitStack() as stack:

        def kill_server() -> None:
            until(lambda: metric(busiest(servers), "vllm:generation_tokens_total") > 20)
            kill(busiest(servers))

        pool = stack.enter_context(ThreadPoolExecutor(1))
        killing = pool.submit(kill_server)
        answer = complete(
            served,
            prompt="whole",
            max_tokens=COUNT,
            ignore_eos=True,
            return_token_ids=True,
        )
        killing.result()
        assert metric(served, MOVED, 'cause="died"') == 1
    assert answer.status == 200
    assert answer.headers["x-holdfast-stream"] == "carried"
    (choice,) = answer.json["choices"]
    assert choice["text"] == make_text("whole", COUNT)
    assert len(choice["token_ids"]) == COUNT
    assert answer.json["usage"]["completion_tokens"] == COUNT


def test_a_seam_within_a_character_waits_for_a_server_that_knows_it(tmp_path: Path) -> None:
    """The only other server dies while it is asked where the last character ends."""
    body = {
        "prompt": "",
        "max_tokens": COUNT,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    options = ("--pair-every", "1", "--prefill", "1")
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(engine(tmp_path, *options, tokens_per_s=0.5)) for _ in range(2)
        )
        served = stack.enter_context(
            router(tmp_path, "--set", "hang_s=60", servers=[first, second])
        )
        # The first event of these ends in a part of a character.
        streams = []
        for prompt in find_prompts(6):
            streams.append(Stream(served.port, body | {"prompt": prompt, "max_tokens": 4}))
        until(lambda: all(stream.payloads for stream in streams), "the first events")
        second.signal(signal.SIGSTOP)
        kill(first)
        until(lambda: metric(served, MOVED) > 0, "a seam")
        kill(second)
        stack.enter_context(engine(tmp_path, *options, port=second.port, tokens_per_s=0.5))
        for stream in streams:
            stream.wait()
            assert stream.is_whole
            assert stream.text == make_text(str(stream.body["prompt"]), 4)


def find_prompts(count: int) -> list[str]:
    """Returns prompts whose second token is a part of a character."""
    prompts: list[str] = []
    for number in range(1000):
        state = model.Model(model.encode(f"part {number}"))
        state.next(may_end=False)
        token, _ = state.next(may_end=False)
        if 0xC0 <= token < model.EOS and make_text(f"part {number}", 1):
            prompts.append(f"part {number}")
    return prompts[:count]


def test_a_chat_goes_on_as_a_chat(tmp_path: Path, engines: Callable[[int], list[Served]]) -> None:
    servers = engines(2)
    with router(tmp_path, servers=servers) as served:
        messages = [{"role": "user", "content": "hello"}]
        body = {
            "messages": messages,
            "max_tokens": COUNT,
            "ignore_eos": True,
        }
        stream = Stream(served.port, body, path=CHAT)
        until(lambda: len(stream.payloads) > 20)
        kill(busiest(servers))
        stream.wait()
        assert metric(served, MOVED, 'cause="died"') == 1
    assert stream.is_whole
    assert stream.text == make_text("user: hello\nassistant:", COUNT)
    assert {event["object"] for event in stream.events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in stream.events}) == 1


def test_a_stream_waits_for_the_only_server(tmp_path: Path) -> None:
    with engine(tmp_path, tokens_per_s=TOKENS_PER_S) as first:
        port = first.port
        with router(tmp_path, servers=[first]) as served:
            streams = open_streams(served, 1)
            kill(first)
            with engine(tmp_path, port=port):
                expect_whole(streams)


def test_a_stream_without_a_server_ends_with_an_error_event(tmp_path: Path) -> None:
    with (
        engine(tmp_path, tokens_per_s=TOKENS_PER_S) as server,
        router(tmp_path, "--hold", "0.5", servers=[server]) as served,
    ):
        streams = open_streams(served, 1)
        kill(server)
        streams[0].wait()
        error = streams[0].events[-1]["error"]
        assert error["message"] == "no server is ready"
        assert metric(served, "holdfast_router_ended_total", 'cause="no_server"') == 1
        answer = complete(served, prompt="late")
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"


def test_a_stream_that_cannot_move_says_so_and_ends_with_an_error_event(
    tmp_path: Path, engines: Callable[[int], list[Served]]
) -> None:
    servers = engines(2)
    with router(tmp_path, servers=servers) as served:
        body = {
            "prompt": "two",
            "n": 2,
            "max_tokens": COUNT,
            "ignore_eos": True,
        }
        stream = Stream(served.port, body)
        until(lambda: len(stream.payloads) > 5)
        kill(busiest(servers))
        stream.wait()
        assert metric(served, "holdfast_router_unmoved_total", 'field="n"') == 1
    assert stream.headers["x-holdfast-stream"] == "unmoved; n"
    assert "cannot move" in stream.events[-1]["error"]["message"]


def test_the_server_is_told_when_the_client_is_gone(
    tmp_path: Path, engines: Callable[[int], list[Served]]
) -> None:
    servers = engines(1)
    with router(tmp_path, servers=servers) as served:
        body = {
            "prompt": "gone",
            "max_tokens": 10_000,
            "ignore_eos": True,
            "stream": True,
        }
        content = json.dumps(body).encode()
        head = (
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        connection = served.send(head.encode(), content)
        until(lambda: metric(servers[0], "vllm:num_requests_running") == 1)
        connection.close()
        until(lambda: metric(servers[0], "vllm:num_requests_running") == 0)
        until(lambda: metric(served, "holdfast_router_streams") == 0)


def test_a_client_that_does_not_read_holds_little_memory(tmp_path: Path) -> None:
    """The server waits for such a client, and other clients do not."""
    count = 100_000
    with (
        engine(tmp_path, "--max-model-len", str(2 * count), tokens_per_s=0) as server,
        router(tmp_path, servers=[server]) as served,
    ):
        process = psutil.Process(served.process.pid)
        complete(served, prompt="warm", max_tokens=500)
        before = process.memory_info().rss
        request = make_request(
            prompt="slow",
            max_tokens=count,
            ignore_eos=True,
        )
        connections = [served.send(request) for _ in range(4)]
        sent_tokens = -1.0
        quick_tokens = 0
        while metric(server, "vllm:generation_tokens_total") - quick_tokens != sent_tokens:
            sent_tokens = metric(server, "vllm:generation_tokens_total") - quick_tokens
            answer = complete(
                served,
                prompt="quick",
                max_tokens=50,
                ignore_eos=True,
            )
            assert answer.json["choices"][0]["text"] == make_text("quick", 50)
            quick_tokens += 50
        growth = process.memory_info().rss - before
        for connection in connections:
            connection.close()
        until(lambda: metric(served, "holdfast_router_streams") == 0)
    assert sent_tokens < 2 * count
    assert growth < 16 * MIB


def test_requests_over_the_limit_are_refused(
    tmp_path: Path, engines: Callable[[int], list[Served]]
) -> None:
    with router(tmp_path, "--streams", "2", servers=engines(1)) as served:
        streams = open_streams(served, 2)
        answer = complete(served, prompt="third")
        expect_whole(streams)
    assert answer.status == 429
    assert answer.headers["retry-after"] == "1"
    assert answer.json["error"]["code"] == 429


def test_a_request_that_loses_every_server_is_given_up_and_rejected(tmp_path: Path) -> None:
    """It may be the cause, so it does not end all servers, also if it comes to another router."""
    with ExitStack() as stack:
        servers = []
        for _ in range(4):
            servers.append(stack.enter_context(engine(tmp_path, "--prefill", "3600")))
        other = stack.enter_context(router(tmp_path, servers=servers))
        with router(tmp_path, *NO_PAUSE_IS_A_HANG, servers=servers) as served:
            stream = Stream(served.port, {"prompt": "poison"})
            for _ in range(3):
                kill(_find_victim(servers))
            stream.wait()
            assert stream.status == 502
            assert Stream(served.port, {"prompt": "poison"}).wait().status == 422
            routers = []
            for client in (served, other):
                routers.append(Endpoint(address=HOST, port=client.port))
            sharer = RejectionSharer(lambda: routers)
            sharer.start()
            stack.callback(sharer.stop.set)
            until(lambda: count_rejections(other) == 1, "the other router to learn of it")
            assert Stream(other.port, {"prompt": "poison"}).wait().status == 422
            assert len(servers) == 1
            assert not _is_running(servers[0])


def test_a_waiting_text_that_loses_every_server_is_rejected(tmp_path: Path) -> None:
    """Its client has comments before the last servers are lost, and no token."""
    body = {"prompt": "poison"}
    slow = ("--prefill", "3600")
    comments = ("--set", "comment_s=0.1")
    with ExitStack() as stack:
        servers = [stack.enter_context(engine(tmp_path, *slow)) for _ in range(2)]
        port = servers[0].port
        options = (*comments, *NO_PAUSE_IS_A_HANG)
        served = stack.enter_context(router(tmp_path, *options, servers=servers))
        stream = Stream(served.port, body)
        for _ in range(2):
            kill(_find_victim(servers))
        until(lambda: stream.comments, "it waits")
        server = stack.enter_context(engine(tmp_path, *slow, port=port))
        until(lambda: _is_running(server), "the last server to run it")
        kill(server)
        stream.wait()
        assert "as several before it" in stream.events[-1]["error"]["message"]
        assert count_rejections(served) == 1
        assert Stream(served.port, body).wait().status == 422


def test_servers_that_end_after_a_drain_do_not_count_against_a_text(tmp_path: Path) -> None:
    options = ("--prefill", "3600", "--shutdown-timeout", "3600")
    with ExitStack() as stack:
        servers = []
        for _ in range(4):
            servers.append(stack.enter_context(engine(tmp_path, *options)))
        # The text stays with a server that drains until its machine ends.
        router_options = ("--set", "drain_s=3600", *NO_PAUSE_IS_A_HANG)
        served = stack.enter_context(router(tmp_path, *router_options, servers=servers))
        stream = Stream(served.port, {"prompt": "innocent"})
        while len(servers) > 1:
            victim = _find_victim(servers)
            victim.signal(signal.SIGTERM)
            until(lambda: count_ready(served) == len(servers), "the drain")
            kill(victim)
        _find_victim(servers)
        assert stream.status == 0, "the text is still open"
        assert count_rejections(served) == 0


def test_a_late_request_that_loses_one_server_is_not_rejected(tmp_path: Path) -> None:
    body = {"prompt": "innocent", "n": 2}
    with ExitStack() as stack:
        servers = []
        for _ in range(2):
            servers.append(stack.enter_context(engine(tmp_path, "--prefill", "3600")))
        options = ("--hold", "0.1", *NO_PAUSE_IS_A_HANG)
        served = stack.enter_context(router(tmp_path, *options, servers=servers))
        stream = Stream(served.port, body)
        opened_at = time.monotonic()
        until(lambda: time.monotonic() > opened_at + 1, "the request to be late")
        kill(_find_victim(servers))
        assert stream.wait().status == 502
        assert count_rejections(served) == 0


def count_rejections(served: Served) -> int:
    return len(served.request("GET", REJECTIONS_PATH).json["rejected"])


def _is_running(served: Served) -> bool:
    return metric(served, "vllm:num_requests_running") == 1


def test_draining_router_finishes_streams_and_ends_late_ones_with_an_error(
    tmp_path: Path,
) -> None:
    with (
        engine(tmp_path, tokens_per_s=30) as server,
        router(tmp_path, "--window", "10", servers=[server]) as served,
    ):
        streams = open_streams(served, 1)
        late = Stream(
            served.port,
            {
                "prompt": "l",
                "max_tokens": 9000,
                "ignore_eos": True,
            },
        )
        until(lambda: late.payloads)
        served.signal(signal.SIGTERM)
        until(lambda: served.ready() == 503)
        late.wait()
        assert served.wait() == 143
        expect_whole(streams)
    assert late.events[-1]["error"]["message"] == "this router shuts down"


@pytest.mark.parametrize("has_server", [True, False])
def test_draining_router_ends_late_requests_that_do_not_move(
    tmp_path: Path, *, has_server: bool
) -> None:
    """They are not repeated at another server, and their clients get a response."""
    body = json.dumps({"prompt": "late", "n": 2}).encode()
    with ExitStack() as stack:
        servers: list[Served] = []
        for _ in range(2 if has_server else 0):
            servers.append(stack.enter_context(engine(tmp_path, "--prefill", "3600")))
        names = [f"{HOST}:{server.port}" for server in servers] or [f"{HOST}:{free_port()}"]
        options = ("--window", "10", "--hold", "600", "--servers", ",".join(names))
        served = stack.enter_context(router(tmp_path, *options, ready=len(servers)))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        late = pool.submit(
            served.request,
            "POST",
            COMPLETIONS,
            body,
        )
        until(lambda: metric(served, "holdfast_router_streams") == 1, "the request")
        served.signal(signal.SIGTERM)
        answer = late.result()
        assert answer.status == 503
        assert answer.json["error"]["message"] == "this router shuts down"
        assert served.wait() == 143
        assert OVER_BUDGET not in served.log.read_text()


def test_an_endpoints_file_is_followed(
    tmp_path: Path, engines: Callable[[int], list[Served]]
) -> None:
    servers = engines(2)
    path = tmp_path / "endpoints.json"

    def write_endpoints(count: int) -> None:
        endpoints = []
        for server in servers[:count]:
            endpoints.append(Endpoint(address=HOST, port=server.port))
        write(path, discovery("servers", endpoints))

    write_endpoints(2)
    with router(tmp_path, "--endpoints-file", str(path), ready=2) as served:
        streams = open_streams(served, 4)
        write_endpoints(1)
        until(lambda: count_ready(served) == 1)
        expect_whole(streams)
        write_endpoints(2)
        until(lambda: count_ready(served) == 2)


def test_a_prefix_stays_with_its_server(
    tmp_path: Path, engines: Callable[[int], list[Served]]
) -> None:
    servers = engines(3)
    with router(tmp_path, servers=servers) as served:
        for _ in range(6):
            complete(served, prompt="the same beginning", max_tokens=2)
    counts = [metric(server, "vllm:request_success_total") for server in servers]
    assert sorted(counts) == [0, 0, 6]


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"{", 400, "the body is not JSON"),
        (b"[]", 400, "the body must be a JSON object"),
        (b'{"prompt": []}', 400, "prompt must be a text or a list of tokens"),
        (b'{"prompt": "a", "max_tokens": 0}', 400, "max_tokens must be at least 1"),
        (b" " * (1 << 20), 413, "the maximum body size is 65536 bytes"),
    ],
)
def test_bad_requests_are_refused(
    whole_router: Served,
    content: bytes,
    status: int,
    message: str,
) -> None:
    answer = whole_router.request("POST", COMPLETIONS, content)
    assert answer.status == status
    assert answer.json["error"]["message"] == message


@pytest.fixture(scope="module")
def whole_router(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    folder = tmp_path_factory.mktemp("router")
    with (
        engine(folder) as server,
        router(folder, "--set", "body_bytes=65536", servers=[server]) as served,
    ):
        yield served


def test_other_paths_are_passed_on(whole_router: Served) -> None:
    answer = whole_router.request("GET", "/v1/models")
    assert answer.json["data"][0]["id"] == "small"
    assert whole_router.request("GET", "/v1/nothing").status == 404
    assert whole_router.request("GET", "/elsewhere").status == 404


def test_a_path_is_passed_on_as_it_is_encoded(tmp_path: Path) -> None:
    lines: list[str] = []

    def answer(path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, object]:
        lines.append(path)
        return 200, b"{}"

    paths = ["/v1/models/org%2Fname", "/v1/models/a%20b?c=d%20e", "/v1/models/%E2%82%AC%3F%23"]
    with answering(answer) as address:
        options = ("--servers", address.removeprefix("http://"))
        with router(tmp_path, *options, ready=1) as served:
            statuses = [served.request("GET", path).status for path in paths]
    assert statuses == [200, 200, 200]
    assert [line for line in lines if line != "/health"] == paths


def test_the_response_to_a_head_request_is_whole(tmp_path: Path) -> None:
    """It gives the length of a body that does not follow."""

    def answer(path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, object]:
        return 200, b"{}"

    with answering(answer) as address:
        options = ("--servers", address.removeprefix("http://"))
        with router(tmp_path, *options, ready=1) as served:
            response = served.request("HEAD", "/v1/models")
            assert response.status == 501
            assert int(response.headers["content-length"]) > 0
            assert metric(served, "holdfast_router_ended_total") == 0


def _find_victim(servers: list[Served]) -> Served:
    """Removes the server that runs the only request from `servers`."""
    until(lambda: any(map(_is_running, servers)), "a server that runs it")
    victim = next(server for server in servers if _is_running(server))
    servers.remove(victim)
    return victim
