"""Who asks whom whether they live, and when that ends a wait."""

import queue
from typing import Any, cast

import pytest

from holdfast.training.elastic.asking import Peers
from holdfast.training.elastic.membership import Epoch, Member
from holdfast.training.elastic.watch import Watch

EPOCH = Epoch(number=3, members=tuple(Member(index=place, incarnation=f"p{place}") for place in range(4)))


class Answers:
    """All live, and the lead has lost the epoch once it was asked three times."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self._times = 0

    def look(self, places: list[int]) -> dict[int, dict[str, Any]]:
        self.asked.put(places)
        self._times += 1
        lost = {"lost": EPOCH.number} if self._times > 3 else {}
        return {place: {"incarnation": f"p{place}"} | (lost if not place else {}) for place in places}


@pytest.mark.parametrize(("me", "asked"), [(0, [1, 2, 3]), (2, [0])])
def test_where_the_lead_asks_all_the_others_ask_the_lead(me: int, asked: list[int]) -> None:
    answers, ended = Answers(), queue.SimpleQueue[None]()
    watch = Watch(
        EPOCH.members[me], cast(Peers, answers), lambda: ended.put(None), silent_s=30.0, only_lead_asks_all=True
    )
    with watch.over(EPOCH):
        assert answers.asked.get(timeout=30) == asked
        if me:  # what the lead has lost is lost
            ended.get(timeout=30)
    watch.close()
