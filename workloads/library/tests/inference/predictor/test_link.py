"""Tests of the pipe to a predicting process, as the event loop of a server reads it."""

import socket
import struct
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

import pytest

from holdfast.inference.predictor.pipe_protocol import SMALL_BYTES, Link, encode

REPLY = encode({"values": [{"score": 1.0}]})


@dataclass(frozen=True)
class Pipe:
    link: Link
    child: socket.socket


@pytest.fixture
def pipe() -> Generator[Pipe]:
    worker_end, child_end = socket.socketpair()
    with closing(Link(worker_end)) as link, child_end:
        yield Pipe(link, child_end)


def test_a_small_reply_is_read_once_it_is_complete(pipe: Pipe) -> None:
    for byte in REPLY[:-1]:
        pipe.child.send(bytes([byte]))
        assert not pipe.link.pull()
        assert not pipe.link.has_small_reply
    pipe.child.send(REPLY[-1:])
    assert pipe.link.pull()
    assert pipe.link.has_small_reply
    assert pipe.link.receive(0)["values"] == [{"score": 1.0}]


def test_a_child_that_ends_within_a_reply_leaves_none(pipe: Pipe) -> None:
    pipe.child.send(REPLY[:-1])
    pipe.child.close()
    pipe.link.pull()
    assert pipe.link.pull(), "no more can arrive"
    assert not pipe.link.has_small_reply
    with pytest.raises(EOFError):
        pipe.link.receive(0)


def test_a_reply_outlives_its_child(pipe: Pipe) -> None:
    pipe.child.send(REPLY)
    pipe.child.close()
    assert pipe.link.pull()
    assert pipe.link.has_small_reply
    assert pipe.link.receive(0)["values"] == [{"score": 1.0}]


def test_a_large_reply_is_left_to_a_thread(pipe: Pipe) -> None:
    pipe.child.send(struct.pack(">I", SMALL_BYTES + 1))
    assert pipe.link.pull()
    assert not pipe.link.has_small_reply


def test_what_is_no_reply_is_not_waited_for(pipe: Pipe) -> None:
    pipe.child.send(b"\xff" * 8)
    assert pipe.link.pull()
    assert not pipe.link.has_small_reply
    with pytest.raises(EOFError, match="no valid message"):
        pipe.link.receive(0)
