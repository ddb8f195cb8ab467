"""Tests what a mirror holds after lists and watches that break off, with a fake API server."""

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from holdfast.clients import watch
from holdfast.clients.watch import Answer, ListAndWatch, UnknownKind


def page(*names: str, next_token: str = "") -> io.BytesIO:
    items = [{"metadata": {"name": name}} for name in names]
    return io.BytesIO(
        json.dumps(
            {
                "items": items,
                "metadata": {"resourceVersion": "7", "continue": next_token},
            }
        ).encode()
    )


def events(*changes: tuple[str, str]) -> io.BytesIO:
    lines = []
    for kind, name in changes:
        lines.append(
            json.dumps(
                {
                    "type": kind,
                    "object": {"metadata": {"name": name}},
                }
            )
        )
    return io.BytesIO("\n".join(lines).encode())


class Mirror(ListAndWatch):
    def __init__(self, *answers: io.BytesIO | Exception) -> None:
        self.warnings = list[str]()
        self.names = set[str]()
        self.queries = list[Mapping[str, str]]()
        super().__init__(
            "names", key=lambda body: body["metadata"]["name"], warn=self.warnings.append
        )
        self._answers = list(answers)

    def get(self, query: Mapping[str, str], timeout_s: float) -> Answer:
        self.queries.append(dict(query))
        if not self._answers:
            self.stop.set()
            raise OSError("no further responses")
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def take(self, changes: Any) -> None:
        for change, body in changes:
            name = body["metadata"]["name"]
            if change == "DELETED":
                self.names.discard(name)
            else:
                self.names.add(name)

    def keep_only(self, listed: set[str]) -> None:
        self.names &= listed


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(watch, "_LOOK_AGAIN_S", 0.0)


def test_all_pages_are_listed_and_the_watch_continues() -> None:
    mirror = Mirror(
        page("a", next_token="next"),
        page("b"),
        events(("ADDED", "c"), ("BOOKMARK", "-"), ("DELETED", "a")),
    )
    mirror.run()
    assert mirror.names == {"b", "c"}
    continues = [query.get("continue", "") for query in mirror.queries[:3]]
    assert continues == ["", "next", ""]
    assert mirror.queries[2]["resourceVersion"] == "7"


@pytest.mark.parametrize(
    "broken",
    [OSError("away"), events(("ERROR", "-")), io.BytesIO(b'{"type": "ADD')],
    ids=["the server is away", "too old", "a line cut in its middle"],
)
def test_objects_deleted_during_a_break_are_dropped(broken: io.BytesIO | Exception) -> None:
    mirror = Mirror(page("a", "b"), broken, page("b"))
    mirror.run()
    assert mirror.names == {"b"}
    assert len(mirror.warnings) == 2


@pytest.mark.parametrize(
    "break_off",
    [lambda: OSError("too many requests"), lambda: io.BytesIO(b""), lambda: events(("ERROR", "-"))],
    ids=["refused", "ended at once", "too old"],
)
def test_watches_that_show_nothing_are_tried_less_often(
    monkeypatch: pytest.MonkeyPatch, break_off: Callable[[], io.BytesIO | Exception]
) -> None:
    """Each of them costs the API server a whole list."""
    monkeypatch.setattr(watch, "_FIRST_PAUSE_S", 0.5)
    shown = events(("ADDED", "b"))
    mirror = Mirror(
        *(page("a"), break_off(), page("a"), break_off(), page("a"), break_off()),
        *(page("a"), shown, page("a"), break_off()),
    )
    pauses: list[float | None] = []
    monkeypatch.setattr(mirror.stop, "wait", pauses.append)
    mirror.run()
    assert pauses[:4] == [0.5, 1.0, 2.0, 0.5]


def test_an_unknown_kind_counts_as_ready() -> None:
    mirror = Mirror(UnknownKind("Not Found"))
    mirror.run()
    assert mirror.ready.is_set()
    assert mirror.warnings[0] == "Not Found; looking again in 0 s"
