import http.client
import io
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.runtime import api_server, deadline
from holdfast.runtime.shutdown import Shutdown
from holdfast.support.errors import InputError

NOON = datetime(2027, 1, 31, 12, tzinfo=UTC).timestamp()


def get_annotations(node: str) -> dict[str, str]:
    assert node != "unasked"
    if node == "flex-1":
        return {"node.gke.io/machine-termination-datetime": "2027-01-31T12:00:00Z"}
    return {}


def find_end(
    env: dict[str, str], annotations: deadline.Annotations = get_annotations
) -> float | None:
    return deadline.find_planned_end(env, annotations=annotations, now=NOON - 3600)


def test_the_end_comes_from_the_environment_or_the_node() -> None:
    assert find_end({}) is find_end({"HOLDFAST_NODE": "spot-1"}) is None
    assert find_end({"HOLDFAST_NODE": "flex-1"}) == NOON
    env = {
        "HOLDFAST_DEADLINE": "2027-01-31T13:00:00+01:00",
        "HOLDFAST_NODE": "unasked",
    }
    assert find_end(env) == NOON


def test_an_api_server_that_does_not_answer_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert find_end({"HOLDFAST_NODE": "flex-1"}, deadline.fetch_node_annotations) is None
    assert "planned end of node flex-1 is unknown" in caplog.text


@pytest.mark.parametrize("answer", [b'{"metadata": {"annot', b"", b"<html>"])
def test_an_answer_that_is_cut_off_is_no_error(
    answer: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Cut(io.BytesIO):
        def read(self, *_: Any) -> bytes:
            if answer:
                return answer
            raise http.client.IncompleteRead(b"{")

    monkeypatch.setattr(api_server, "open_path", lambda _path, *, timeout_s: Cut())
    assert find_end({"HOLDFAST_NODE": "flex-1"}, deadline.fetch_node_annotations) is None
    assert "planned end of node flex-1 is unknown" in caplog.text


@pytest.mark.parametrize("text", ["2027-01-31T10:59:00Z", "in seven days", "1800000000"])
def test_a_past_or_unreadable_deadline_is_bad_input(text: str) -> None:
    with pytest.raises(InputError, match="not a time in the future") as caught:
        find_end({"HOLDFAST_DEADLINE": text})
    assert "after 2027-01-31T11:00:00Z" in caught.value.allowed


def test_the_stop_comes_before_the_end_with_the_lead_as_its_window() -> None:
    shutdown = Shutdown()
    watch = deadline.stop_before(
        shutdown,
        time.time() + 60.3,
        lead_s=60,
    )
    assert shutdown.wait(30)
    assert 50 < shutdown.seconds_left(window_s=5, margin_s=0) <= 60.3
    shutdown.request("SIGTERM")
    assert shutdown.seconds_left(5, margin_s=0) <= 5, "a notice before the planned end shortens it"
    assert shutdown.reason == "planned end of the node"
    late = deadline.stop_before(
        shutdown,
        time.time() + 10_000,
        lead_s=1,
    )
    for thread in (watch, late):
        thread.join(60)
        assert not thread.is_alive(), "the thread ends with the run"
