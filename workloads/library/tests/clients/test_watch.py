"""What a copy knows after lists and watches that break off, from an API server that is played."""

import io
import json
from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.clients import watch
from holdfast.clients.watch import Answer, ListAndWatch, NotThere


def page(*names: str, more: str = "") -> io.BytesIO:
    items = [{"metadata": {"name": name}} for name in names]
    return io.BytesIO(
        json.dumps(
            {
                "items": items,
                "metadata": {"resourceVersion": "7", "continue": more},
            }
        ).encode()
    )


def events(*found: tuple[str, str]) -> io.BytesIO:
    lines = []
    for kind, name in found:
        lines.append(
            json.dumps(
                {
                    "type": kind,
                    "object": {"metadata": {"name": name}},
                }
            )
        )
    return io.BytesIO("\n".join(lines).encode())


class Copied(ListAndWatch):
    def __init__(self, *answers: io.BytesIO | Exception) -> None:
        self.warnings = list[str]()
        self.names = set[str]()
        self.asked = list[Mapping[str, str]]()
        super().__init__(
            "names", key=lambda found: found["metadata"]["name"], warn=self.warnings.append
        )
        self._answers = list(answers)

    def get(self, query: Mapping[str, str], timeout_s: float) -> Answer:
        self.asked.append(dict(query))
        if not self._answers:
            self.stop.set()
            raise OSError("played to its end")
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def take(self, changes: Any) -> None:
        for change, found in changes:
            (self.names.discard if change == "DELETED" else self.names.add)(
                found["metadata"]["name"]
            )

    def keep_only(self, listed: set[str]) -> None:
        self.names &= listed


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(watch, "_LOOK_AGAIN_S", 0.0)


def test_every_page_of_the_list_counts_and_the_watch_goes_on_from_it() -> None:
    copied = Copied(
        page("a", more="next"),
        page("b"),
        events(("ADDED", "c"), ("BOOKMARK", "-"), ("DELETED", "a")),
    )
    copied.run()
    assert copied.names == {"b", "c"}
    assert [query.get("continue", "") for query in copied.asked[:3]] == ["", "next", ""]
    assert copied.asked[2]["resourceVersion"] == "7"


@pytest.mark.parametrize(
    "broken",
    [OSError("away"), events(("ERROR", "-")), io.BytesIO(b'{"type": "ADD')],
    ids=["the server is away", "too old", "a line cut in its middle"],
)
def test_after_any_break_what_vanished_meanwhile_is_forgotten(
    broken: io.BytesIO | Exception,
) -> None:
    copied = Copied(page("a", "b"), broken, page("b"))
    copied.run()
    assert copied.names == {"b"}
    assert len(copied.warnings) == 2


def test_nothing_waits_for_a_kind_that_the_cluster_does_not_know() -> None:
    copied = Copied(NotThere("Not Found"))
    copied.run()
    assert copied.ready.is_set()
    assert copied.warnings[0] == "Not Found; looking again in 0 s"
