"""Simulates the prefix caches of servers behind routers, in virtual time.

`python -m workloads.library.tests.inference.router.prefix_caches` prints the share of all
characters of prompts that their servers had in their caches, for each way to choose a server.
"""

import asyncio
import hashlib
import heapq
import itertools
import logging
import random
import statistics
import string
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from holdfast.inference.router.prefixes import PrefixTraffic, digest_beginnings
from holdfast.inference.router.servers import Address, Server, ServerPool, State

SERVERS = 4
CACHE_CHARS = 1_000_000
BLOCK_CHARS = 64
"""The block of a server's cache: 16 tokens."""
REQUESTS = 1_200
RATE_PER_S = 4.0
PREFILL_CHARS_PER_S = 20_000
DECODE_S = 5.0
TURNS = 6
HEAD_CHARS = 1_024

Prompt = tuple[float, str]
"""Time and text."""
Chooser = Callable[[ServerPool, str], Server]


def write_text(source: random.Random, chars: int) -> str:
    letters = source.choices(string.ascii_lowercase, k=chars)
    return "".join(letters)


def make_chats(source: random.Random, system_chars: int) -> list[Prompt]:
    """Makes conversations that all begin with one system prompt."""
    system = write_text(source, system_chars)
    prompts: list[Prompt] = []
    start_s = 0.0
    for _ in range(REQUESTS // TURNS):
        start_s += source.expovariate(RATE_PER_S / TURNS)
        turns = _converse(
            source,
            system,
            start_s,
        )
        prompts += turns
    return sorted(prompts)


def _converse(source: random.Random, system: str, start_s: float) -> Iterator[Prompt]:
    text = system
    time_s = start_s
    for _ in range(TURNS):
        text += write_text(source, 800)  # the question
        yield time_s, text
        text += write_text(source, 800)  # the answer
        time_s += source.uniform(10.0, 40.0)


def make_questions(source: random.Random, documents: int) -> list[Prompt]:
    """Makes questions about documents, all of which begin with one system prompt."""
    system = write_text(source, 1_500)
    texts: list[str] = []
    for _ in range(documents):
        document = write_text(source, 24_000)
        texts.append(system + document)
    prompts: list[Prompt] = []
    time_s = 0.0
    for _ in range(REQUESTS):
        time_s += source.expovariate(RATE_PER_S)
        question = write_text(source, 400)
        text = source.choice(texts) + question
        prompts.append((time_s, text))
    return prompts


def make_unique_prompts(source: random.Random) -> list[Prompt]:
    prompts: list[Prompt] = []
    time_s = 0.0
    for _ in range(REQUESTS):
        time_s += source.expovariate(RATE_PER_S)
        text = write_text(source, 4_000)
        prompts.append((time_s, text))
    return prompts


WORKLOADS: dict[str, Callable[[random.Random], list[Prompt]]] = {
    "chats, system prompt of 8,000 characters": lambda source: make_chats(source, 8_000),
    "chats, system prompt of 300 characters": lambda source: make_chats(source, 300),
    "questions about 40 documents": lambda source: make_questions(source, 40),
    "questions about 6 documents": lambda source: make_questions(source, 6),
    "prompts without a common beginning": make_unique_prompts,
}


class PrefixCache:
    """Holds the latest blocks of a server, each with all that was before it."""

    def __init__(self) -> None:
        self._blocks = OrderedDict[bytes, None]()

    def read(self, text: str) -> int:
        """Returns the characters at the beginning that it has, and takes in the rest."""
        hasher = hashlib.blake2b(digest_size=8)
        cached_chars = 0
        is_cached = True
        for start in range(0, len(text) - BLOCK_CHARS + 1, BLOCK_CHARS):
            content = text[start : start + BLOCK_CHARS]
            hasher.update(content.encode())
            block = hasher.digest()
            is_cached = is_cached and block in self._blocks
            cached_chars += BLOCK_CHARS * is_cached
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        most_blocks = CACHE_CHARS // BLOCK_CHARS
        while len(self._blocks) > most_blocks:
            self._blocks.popitem(last=False)
        return cached_chars


def choose_least_loaded(pool: ServerPool, text: str) -> Server:
    server = pool.choose(b"")
    return _require(server)


def choose_by_head(pool: ServerPool, text: str) -> Server:
    """Chooses by the first characters alone."""
    head = text[:HEAD_CHARS]
    key = digest_beginnings(head)[-1]
    server = pool.choose(key)
    return _require(server)


def make_prefix_chooser() -> Chooser:
    """Makes a router's own choice."""
    traffic = PrefixTraffic()

    def choose(pool: ServerPool, text: str) -> Server:
        beginnings = digest_beginnings(text)
        key = traffic.find_key(beginnings, SERVERS)
        server = pool.choose(key)
        return _require(server)

    return choose


def _require(server: Server | None) -> Server:
    assert server is not None
    return server


@dataclass(kw_only=True)
class Outcome:
    prompt_chars: int = 0
    cached_chars: int = 0
    loads: list[float] = field(default_factory=list)
    """The largest number of requests of a server over the average, at each request."""

    @property
    def hit_rate(self) -> float:
        return self.cached_chars / self.prompt_chars

    @property
    def median_load(self) -> float:
        return statistics.median(self.loads)


def simulate(prompts: list[Prompt], routers: list[Chooser], seed: int = 1) -> Outcome:
    """Sends each prompt through one of the routers."""

    async def run() -> Outcome:
        return _simulate(
            prompts,
            routers,
            random.Random(seed),
        )

    return asyncio.run(run())


def _simulate(
    prompts: list[Prompt],
    routers: list[Chooser],
    source: random.Random,
) -> Outcome:
    pool = ServerPool()
    caches: dict[Server, PrefixCache] = {}
    addresses: list[Address] = []
    for number in range(SERVERS):
        address = Address(
            host="10.0.0.1",
            port=number,
            health_port=number,
        )
        addresses.append(address)
    for server in pool.set_addresses(addresses):
        pool.set_state(server, State.READY)
        caches[server] = PrefixCache()
    numbers = itertools.count()
    ends: list[tuple[float, int, Server]] = []
    outcome = Outcome()
    for time_s, text in prompts:
        while ends and ends[0][0] <= time_s:
            _, _, server = heapq.heappop(ends)
            pool.give_back(server)
        choose = source.choice(routers)
        server = choose(pool, text)
        server.requests += 1
        cached_chars = caches[server].read(text)
        prefill_s = (len(text) - cached_chars) / PREFILL_CHARS_PER_S
        end = (
            time_s + prefill_s + DECODE_S,
            next(numbers),
            server,
        )
        heapq.heappush(ends, end)
        outcome.prompt_chars += len(text)
        outcome.cached_chars += cached_chars
        requests = [server.requests for server in pool.all()]
        average = statistics.mean(requests)
        load = max(requests) / average
        outcome.loads.append(load)
    return outcome


def main() -> None:
    logging.disable(logging.INFO)
    for name, make in WORKLOADS.items():
        source = random.Random(1)
        prompts = make(source)
        ways = {
            "load": [choose_least_loaded],
            "head": [choose_by_head],
            "one router": [make_prefix_chooser()],
            "three routers": [
                make_prefix_chooser(),
                make_prefix_chooser(),
                make_prefix_chooser(),
            ],
        }
        print(name)
        for way, routers in ways.items():
            outcome = simulate(prompts, routers)
            print(
                f"  {way:14}",
                f"{outcome.hit_rate:.3f} cached,",
                f"load {outcome.median_load:.2f}",
            )


if __name__ == "__main__":
    main()
