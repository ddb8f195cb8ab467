"""Tests of the beginnings of prompts by which requests find a server with a cached prefix."""

import random

from holdfast.inference.router.prefixes import PrefixTraffic, digest_beginnings
from workloads.library.tests.inference.router.prefix_caches import (
    SERVERS,
    choose_least_loaded,
    make_chats,
    make_prefix_chooser,
    make_unique_prompts,
    simulate,
    write_text,
)

SYSTEM_CHARS = 2_000


def send(traffic: PrefixTraffic, text: str) -> bytes:
    beginnings = digest_beginnings(text)
    return traffic.find_key(beginnings, SERVERS)


def warm_up(traffic: PrefixTraffic, source: random.Random, system: str) -> None:
    """Sends conversations of two turns with one system prompt."""
    for _ in range(100):
        question = system + write_text(source, 600)
        send(traffic, question)
        answer = write_text(source, 600)
        send(traffic, question + answer)


def test_requests_with_one_rare_beginning_have_one_key() -> None:
    """A beginning is common if a server has more than half of its requests from it."""
    traffic = PrefixTraffic()
    source = random.Random(1)
    document = write_text(source, SYSTEM_CHARS)
    keys = set()
    for _ in range(10):
        question = write_text(source, 600)
        keys.add(send(traffic, document + question))
    assert keys == {digest_beginnings(document)[0]}


def test_a_common_system_prompt_does_not_bring_conversations_together() -> None:
    traffic = PrefixTraffic()
    source = random.Random(1)
    system = write_text(source, SYSTEM_CHARS)
    warm_up(traffic, source, system)
    keys = set()
    for _ in range(20):
        question = write_text(source, 600)
        keys.add(send(traffic, system + question))
    assert len(keys) == 20


def test_all_routers_find_one_key_for_a_conversation() -> None:
    source = random.Random(1)
    system = write_text(source, SYSTEM_CHARS)
    routers = [
        PrefixTraffic(),
        PrefixTraffic(),
    ]
    for router in routers:
        warm_up(router, source, system)
    text = system + write_text(source, 600)
    keys = set()
    for turn in range(10):
        keys.add(send(routers[turn % 2], text))
        text += write_text(source, 600)
    assert len(keys) == 1
    assert b"" not in keys


def test_prompts_without_common_beginnings_go_by_load() -> None:
    traffic = PrefixTraffic()
    source = random.Random(1)
    keys = []
    for _ in range(100):
        text = write_text(source, 600)
        keys.append(send(traffic, text))
    assert set(keys[20:]) == {b""}


def test_the_counts_follow_the_traffic() -> None:
    """A system prompt that is out of use is no longer common."""
    traffic = PrefixTraffic()
    source = random.Random(1)
    old_system = write_text(source, SYSTEM_CHARS)
    first_beginning = digest_beginnings(old_system)[0]
    warm_up(traffic, source, old_system)
    assert send(traffic, old_system + "x") != first_beginning
    for _ in range(6):
        system = write_text(source, SYSTEM_CHARS)
        warm_up(traffic, source, system)
    assert send(traffic, old_system + "y") == first_beginning


def test_several_routers_hit_caches_alike() -> None:
    """The figures in decision 0187 are of the same simulation."""
    source = random.Random(1)
    prompts = make_chats(source, 8_000)
    by_load = simulate(prompts, [choose_least_loaded])
    for count in (1, 3):
        routers = [make_prefix_chooser() for _ in range(count)]
        outcome = simulate(prompts, routers)
        assert outcome.hit_rate > by_load.hit_rate + 0.05


def test_loads_are_even_where_nothing_is_cached() -> None:
    source = random.Random(1)
    prompts = make_unique_prompts(source)
    by_load = simulate(prompts, [choose_least_loaded])
    outcome = simulate(prompts, [make_prefix_chooser()])
    assert outcome.hit_rate == 0
    difference = outcome.median_load - by_load.median_load
    assert abs(difference) < 0.05
