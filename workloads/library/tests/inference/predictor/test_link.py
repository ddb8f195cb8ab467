"""Tests of the worker's end of the pipe, and of an event loop that waits there for a reply."""

import asyncio
import select
import socket
from collections.abc import Generator
from dataclasses import dataclass

import pytest

from holdfast.inference.errors import TimedOut
from holdfast.inference.predictor import pipe_protocol
from holdfast.inference.predictor.pipe_protocol import SMALL_BYTES, Link
from holdfast.inference.server.model_queue import wait_for_reply
from workloads.library.tests.inference.predictor.test_process import start_predictor

REPLY = pipe_protocol.encode({"values": [{"said": "a"}], "seconds": 0.0})
PATIENCE_S = 60.0


@dataclass
class Pipe:
    link: Link
    child: socket.socket


@pytest.fixture
def pipe() -> Generator[Pipe]:
    worker_end, child_end = socket.socketpair()
    with child_end:
        link = Link(worker_end)
        yield Pipe(link, child_end)
        link.close()


def test_a_reply_in_parts_ends_with_the_last(pipe: Pipe) -> None:
    assert not pipe.link.pull()
    for part in (REPLY[:2], REPLY[2:9]):
        pipe.child.sendall(part)
        assert not pipe.link.pull()
    pipe.child.sendall(REPLY[9:])
    assert pipe.link.pull()
    assert pipe.link.has_small_reply
    assert pipe.link.receive(0.0)["seconds"] == 0.0
    assert not pipe.link.has_small_reply


def test_a_large_reply_ends_the_wait_with_its_first_bytes(pipe: Pipe) -> None:
    large = pipe_protocol.encode({"values": ["x" * SMALL_BYTES]})
    pipe.child.sendall(large[:9])
    assert pipe.link.pull()
    assert not pipe.link.has_small_reply


def test_a_closed_pipe_ends_the_wait(pipe: Pipe) -> None:
    pipe.child.sendall(REPLY[:-1])
    pipe.child.close()
    assert not pipe.link.pull()
    assert pipe.link.pull()
    assert not pipe.link.has_small_reply
    with pytest.raises(EOFError):
        pipe.link.receive(PATIENCE_S)


def test_a_reply_outlives_its_child(pipe: Pipe) -> None:
    pipe.child.sendall(REPLY)
    pipe.child.close()
    assert pipe.link.pull()
    assert pipe.link.has_small_reply
    assert pipe.link.receive(0.0)["seconds"] == 0.0


def test_what_is_no_reply_ends_the_wait(pipe: Pipe) -> None:
    pipe.child.sendall(b"\xff" * 8)
    assert pipe.link.pull()
    assert not pipe.link.has_small_reply
    with pytest.raises(EOFError, match="no valid message"):
        pipe.link.receive(0.0)


def test_a_loop_waits_for_a_reply(pipe: Pipe) -> None:
    async def wait() -> None:
        asyncio.get_running_loop().call_soon(pipe.child.sendall, REPLY)
        await wait_for_reply(pipe.link, PATIENCE_S)

    asyncio.run(wait())
    assert pipe.link.has_small_reply


def test_a_loop_waits_no_longer_than_it_may(pipe: Pipe) -> None:
    asyncio.run(wait_for_reply(pipe.link, 0.0))
    assert not pipe.link.has_small_reply


def _await(link: Link) -> None:
    while not link.pull():
        select.select([link], [], [], PATIENCE_S)


@pytest.mark.process
def test_a_batch_is_answered_where_its_reply_arrives() -> None:
    with start_predictor() as predictor:
        link = predictor.send([b"a", b"bc"])
        assert link is not None
        _await(link)
        assert link.has_small_reply
        values = predictor.predict([b"a", b"bc"])
    assert [value["length"] for value in values] == [1, 2]


@pytest.mark.process
def test_only_small_batches_are_sent_without_blocking() -> None:
    with start_predictor() as predictor:
        large = [b"x" * SMALL_BYTES, b"x"]
        assert predictor.send(large) is None
        (value, _) = predictor.predict(large)
        assert value["length"] == SMALL_BYTES
        predictor.close()
        assert predictor.send([b"a"]) is None


@pytest.mark.process
def test_a_wait_in_the_loop_counts_towards_the_timeout() -> None:
    with start_predictor(timeout_s=PATIENCE_S) as predictor:
        predictor.send([b"hang"])
        with pytest.raises(TimedOut):
            predictor.predict([b"hang"], PATIENCE_S)
