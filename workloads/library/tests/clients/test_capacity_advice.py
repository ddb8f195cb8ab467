"""Advice on capacity, from a server that answers in the form of Google's discovery document."""

import json
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.clients import capacity_advice
from holdfast.clients.capacity_advice import Advice, Request, ask, parse_answer, post
from holdfast.support.errors import Unjudged
from holdfast.vocabulary.capacity import Capacity
from workloads.library.tests.clients.capacity_advisor import Advisor, advising
from workloads.library.tests.http_server import answering

WISH = Request(
    project="acme-ai",
    region="us-central1",
    zones=("us-central1-a", "us-central1-b"),
    machine_types=("a3-highgpu-8g",),
    size=8,
    capacity=Capacity.SPOT,
)
TOKEN = "not-a-secret"


def test_the_server_checks_and_answers_the_form() -> None:
    advisor = Advisor({("a3-highgpu-8g", "SPOT"): (0.9, "3600s")})
    with advising(advisor) as address:
        advice = post(WISH, address, TOKEN)
    assert advice == Advice(obtainability=0.9, uptime_s=3_600, zones=("us-central1-a",))
    assert advice.text() == "0.9, 1 h"
    [(path, body)] = advisor.requests
    assert path == "/projects/acme-ai/regions/us-central1/advice/capacity"
    assert body["size"] == 8


def test_the_environment_names_the_address_and_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with advising(Advisor({("a3-highgpu-8g", "SPOT"): (0.2, "600s")})) as address:
        monkeypatch.setenv("HOLDFAST_CAPACITY_ADVICE", address)
        monkeypatch.setenv("HOLDFAST_GOOGLE_TOKEN", TOKEN)
        assert ask(WISH).text() == "0.2, 10 min"


def test_off_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CAPACITY_ADVICE", "off")
    with pytest.raises(Unjudged, match="not asked: HOLDFAST_CAPACITY_ADVICE=off"):
        ask(WISH)


def test_without_gcloud_and_token_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HOLDFAST_GOOGLE_TOKEN", raising=False)
    with pytest.raises(Unjudged, match="gcloud is not installed"):
        ask(WISH)


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (
            403,
            {"error": {"message": "secret words"}},
            "403 Forbidden; it needs roles/compute",
        ),
        (404, {}, "Google answered 404"),
        (200, b"<html>", "Google answered in another form"),
        (200, [], "Google answered in another form"),
        (200, {"recommendations": []}, "Google answered in another form"),
    ],
)
def test_what_goes_wrong_is_one_line(status: int, body: object, problem: str) -> None:
    def answer(path: str, headers: Mapping[str, str], data: bytes) -> tuple[int, object]:
        return status, body

    with answering(answer) as address, pytest.raises(Unjudged) as error:
        post(WISH, address, TOKEN)
    text = str(error.value)
    assert problem in text
    assert "\n" not in text
    assert TOKEN not in text
    assert "secret words" not in text


def test_a_server_that_is_gone_is_one_line() -> None:
    with pytest.raises(Unjudged, match="Google did not answer"):
        post(WISH, "http://127.0.0.1:1", TOKEN)


def test_a_server_that_speaks_no_http_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        greeter = threading.Thread(target=greet, args=(server,))
        greeter.start()
        with pytest.raises(Unjudged, match=r"Google did not answer: SSH-2\.0$"):
            post(WISH, f"http://127.0.0.1:{server.getsockname()[1]}", TOKEN)
        greeter.join()


def greet(server: socket.socket) -> None:
    """Greets as an SSH server does, and reads until the client gives up."""
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"SSH-2.0\r\n")
        while connection.recv(1 << 16):
            pass


@pytest.mark.parametrize(
    ("address", "token", "problem"),
    [
        ("advice.example", TOKEN, "the address advice.example or the token"),
        ("http://advice.example:port", TOKEN, "Google did not answer: nonnumeric port"),
        ("http://127.0.0.1:1", f"{TOKEN}\r\nX-Other: 1", "the token has another form"),
    ],
)
def test_an_unusable_address_or_token_is_one_line(address: str, token: str, problem: str) -> None:
    with pytest.raises(Unjudged, match=problem) as error:
        post(WISH, address, token)
    assert TOKEN not in str(error.value)


@pytest.mark.parametrize(
    "scores",
    [
        {"obtainability": 1.5},
        {"obtainability": "high"},
        {},
        None,
    ],
)
def test_unknown_scores_are_no_advice(scores: object) -> None:
    with pytest.raises(ValueError):
        parse_answer({"recommendations": [{"scores": scores}]})


def test_the_best_recommendation_counts() -> None:
    bodies = [{"scores": {"obtainability": value}} for value in (0.3, 0.8, 0.5)]
    assert parse_answer(json.loads(json.dumps({"recommendations": bodies}))).obtainability == 0.8


def test_on_demand_is_not_asked_for() -> None:
    wish = Request(
        project="p",
        region="r",
        zones=(),
        machine_types=("m",),
        size=1,
        capacity=Capacity.ON_DEMAND,
    )
    with pytest.raises(Unjudged, match="no advice for 1 machines on-demand"):
        capacity_advice.post(wish, "http://127.0.0.1:1", TOKEN)
