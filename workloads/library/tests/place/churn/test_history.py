"""The churn history: days only ever become fuller, and no run writes over another."""

from collections.abc import Generator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from holdfast.contract.errors import InputError, Unjudged
from holdfast.place.churn.days import Day
from holdfast.place.churn.estimate import Exposure, Group
from holdfast.place.churn.history import Store, recall, remember
from holdfast.place.churn.store import Bucket, Folder, open_store
from workloads.library.tests.place.churn.object_server import ObjectServer

L4 = Group(pool="spot-l4", machine_type="g2-standard-8", zone="us-central1-a")
A100 = Group(pool="spot-a100", machine_type="a2-highgpu-1g", zone="us-central1-b")
NAME = "churn-2026-11-20.json"


def day(hours: int, node_hours: float, losses: float = 1, number: int = 20, group: Group = L4) -> Day:
    rows = {(group, 0.25): Exposure(events=losses, hours=node_hours)}
    return Day(day=date(2026, 11, number), hours=hours, rows=rows)


@pytest.fixture
def server() -> Generator[ObjectServer]:
    server = ObjectServer()
    yield server
    server.stop()


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path, server: ObjectServer) -> Store:
    return Folder(tmp_path / "history") if request.param == "folder" else Bucket(server.bucket(), "churn/")


def test_an_empty_history_recalls_nothing(store: Store) -> None:
    assert recall(store) == []


def test_what_is_remembered_is_recalled(store: Store) -> None:
    days = [day(24, 100.5), day(6, 3, number=21, group=A100)]
    remember(store, days)
    assert recall(store) == days


def test_the_same_day_written_twice_changes_nothing(store: Store) -> None:
    remember(store, [day(24, 100.5)])
    before = store.read(NAME)
    remember(store, [day(24, 100.5)])
    assert store.read(NAME) == before


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)])
def test_the_fullest_count_of_a_day_stays_in_whatever_order_they_come(store: Store, order: tuple[int, ...]) -> None:
    # The third: late points came. The first: half of its points had left the cloud for their age.
    days = [day(24, 40), day(12, 60), day(24, 100)]
    for number in order:
        remember(store, [days[number]])
    assert recall(store) == [days[2]]


class Overtaken:
    """A store in which somebody else writes between each read and write, so many times."""

    def __init__(self, store: Store, times: int) -> None:
        self.store, self.times = store, times

    def names(self) -> Any:
        return self.store.names()

    def read(self, name: str) -> tuple[bytes, str]:
        found = self.store.read(name)
        if self.times:
            self.times -= 1
            remember(self.store, [day(20 - self.times, 500)])
        return found

    def write(self, name: str, data: bytes, replaces: str) -> bool:
        return self.store.write(name, data, replaces)


def test_two_runs_at_once_never_overwrite_each_other(store: Store) -> None:
    remember(Overtaken(store, 2), [day(2, 10)])
    assert recall(store) == [day(20, 500)]
    remember(Overtaken(store, 1), [day(24, 700)])
    assert recall(store) == [day(24, 700)]


def test_a_day_that_others_write_all_the_time_is_given_up(store: Store) -> None:
    with pytest.raises(Unjudged, match="others write it all the time"):
        remember(Overtaken(store, 20), [day(24, 900)])


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"v": 2, "day": "2026-11-20", "hours": 24, "rows": []}',
        '{"v": 1, "day": "2026-11-19", "hours": 24, "rows": []}',
        '{"v": 1, "day": "2026-11-20", "hours": 25, "rows": []}',
        '{"v": 1, "day": "2026-11-20", "hours": 24, "rows": [{"pool": "a"}]}',
    ],
)
def test_a_damaged_day_is_named_and_neither_read_nor_replaced(store: Store, text: str) -> None:
    assert store.write(NAME, text.encode(), "")
    for use in (lambda: recall(store), lambda: remember(store, [day(24, 1)])):
        with pytest.raises(InputError, match=f"history {NAME} is damaged"):
            use()
    assert store.read(NAME)[0] == text.encode()


def test_other_files_beside_the_history_are_left_alone(store: Store) -> None:
    assert store.write("churn-notes.json", b"no day", "")
    remember(store, [day(24, 1)])
    assert recall(store) == [day(24, 1)]


def test_a_closed_bucket_is_reported(server: ObjectServer) -> None:
    server.refuse = 403
    with pytest.raises(Unjudged, match=r"roles/storage\.objectUser"):
        remember(Bucket(server.bucket(), ""), [day(24, 1)])


def test_a_history_that_is_a_file_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file")
    with pytest.raises(InputError, match="cannot be written"):
        remember(open_store(str(tmp_path / "history")), [day(24, 1)])


def test_a_url_of_no_known_kind_is_bad_input() -> None:
    with pytest.raises(InputError, match="no known kind"):
        open_store("s3://elsewhere/history")
