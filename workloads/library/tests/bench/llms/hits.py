"""Prefix caches of the real vLLM: servers chosen by prefix, by load alone, and by vLLM's router.

Conversations begin at random times with one system prompt, and go on after pauses. Each run has
texts of its own, so that it finds none of an earlier run. vLLM counts the tokens of prompts, and
those of them that it had in its cache.
"""

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from holdfast.vocabulary.serving import PORT
from workloads.library.tests.bench.llms.peer import PEER, running_peer
from workloads.library.tests.inference.router.fleet import complete, metric
from workloads.library.tests.inference.server.serving import Client
from workloads.library.tests.llm import install
from workloads.library.tests.llm.pods import (
    PROGRAM,
    SERVICE,
    Pod,
    running_pods,
    running_router,
)
from workloads.library.tests.llm.streams import ENDED_TEXTS, wait_until_idle
from workloads.library.tests.processes import family

Figures = dict[str, Any]
SERVERS = 3
BLOCK_TOKENS = 32
"""vLLM's smallest block on processors; on GPUs it has 16."""
CACHE_TOKENS = 32_768
"""The cache of a server: about as much as the conversations that are open at a time."""
OPTIONS = (
    "--block-size",
    str(BLOCK_TOKENS),
    "--num-gpu-blocks-override",
    str(CACHE_TOKENS // BLOCK_TOKENS),
)
SYSTEM_WORDS = {"long": 2_000, "short": 80}
"""The words, which are tokens, of the system prompt of each workload."""
QUESTION_WORDS = 150
ANSWER_TOKENS = 32
TURNS = 6
STARTS_PER_S = 1.0
PAUSE_S = (2.0, 8.0)
LOAD_ROUTER = "workloads.library.tests.bench.llms.load_router"
WAYS = ("load", "prefix", PEER)
"""The ways to choose a server: two of the router's own, and that of vLLM's router."""
VOCABULARY = 300
"""Words of the texts: fewer than the tiny model knows."""
SPECIAL_TOKENS = range(4)
QUERIES = "vllm:prefix_cache_queries_total"
HITS = "vllm:prefix_cache_hits_total"


@dataclass(frozen=True, kw_only=True)
class Conversation:
    start_s: float
    system: str
    questions: list[str]
    pauses_s: list[float]


@dataclass(frozen=True, kw_only=True)
class Counters:
    queried_tokens: float
    cached_tokens: float
    cpu_s: float
    texts: list[float]
    """Number of finished texts of each server."""


def run_hits(folder: Path, *, conversations: int) -> Figures:
    """Plays each workload once by each way, on the same servers."""
    home = install.install()
    model = install.make_model(home)
    figures: Figures = {}
    with running_pods(folder, home, model, count=SERVERS, options=OPTIONS) as pods:
        for workload, system_words in SYSTEM_WORDS.items():
            for way in WAYS:
                name = f"{workload}, by {way}"
                source = random.Random(name)
                plans = make_conversations(source, conversations, system_words)
                own_folder = folder / f"{workload}-{way}"
                own_folder.mkdir()
                before = read_counters(pods)
                with _running(way, own_folder, pods) as client:
                    seconds = play(client, plans)
                figures[name] = describe(before, read_counters(pods), seconds)
    return figures


def _running(way: str, folder: Path, pods: list[Pod]) -> AbstractContextManager[Client]:
    if way == PEER:
        return running_peer(folder, [pod.ports[PORT] for pod in pods])
    return running_router(folder, pods, LOAD_ROUTER if way == "load" else PROGRAM)


def make_conversations(source: random.Random, count: int, system_words: int) -> list[Conversation]:
    system = make_text(source, system_words)
    conversations: list[Conversation] = []
    start_s = 0.0
    for _ in range(count):
        start_s += source.expovariate(STARTS_PER_S)
        questions: list[str] = []
        pauses_s: list[float] = []
        for _ in range(TURNS):
            questions.append(make_text(source, QUESTION_WORDS))
            pauses_s.append(source.uniform(*PAUSE_S))
        conversation = Conversation(
            start_s=start_s,
            system=system,
            questions=questions,
            pauses_s=pauses_s,
        )
        conversations.append(conversation)
    return conversations


def make_text(source: random.Random, words: int) -> str:
    return " ".join(f"w{source.randrange(VOCABULARY)}" for _ in range(words))


def play(client: Client, conversations: list[Conversation]) -> list[float]:
    """Returns the seconds of each request."""
    started = time.monotonic()

    def converse(conversation: Conversation) -> list[float]:
        time.sleep(max(0.0, started + conversation.start_s - time.monotonic()))
        seconds: list[float] = []
        text = conversation.system
        for question, pause_s in zip(
            conversation.questions,
            conversation.pauses_s,
            strict=True,
        ):
            text = f"{text} {question}"
            start_s = time.monotonic()
            answer = ask(client, text)
            seconds.append(time.monotonic() - start_s)
            text = f"{text} {answer}"
            time.sleep(pause_s)
        return seconds

    with ThreadPoolExecutor(len(conversations)) as pool:
        return [second for seconds in pool.map(converse, conversations) for second in seconds]


def ask(client: Client, text: str) -> str:
    response = complete(
        client,
        model=SERVICE.name,
        prompt=text,
        max_tokens=ANSWER_TOKENS,
        ignore_eos=True,
        # Words only: a text loses other tokens, and the next prompt would not begin with them.
        logit_bias={str(token): -100 for token in SPECIAL_TOKENS},
    )
    assert response.status == 200, response.body
    return response.json["choices"][0]["text"]


def read_counters(pods: list[Pod]) -> Counters:
    """Reads the counters of all servers, once they are idle."""
    cpu_s = 0.0
    texts: list[float] = []
    for pod in pods:
        wait_until_idle(pod)
        texts.append(metric(pod.client, ENDED_TEXTS))
        for process in family(pod.engine.child.pid):
            times = process.cpu_times()
            cpu_s += times.user + times.system
    return Counters(
        queried_tokens=sum(metric(pod.client, QUERIES) for pod in pods),
        cached_tokens=sum(metric(pod.client, HITS) for pod in pods),
        cpu_s=cpu_s,
        texts=texts,
    )


def describe(before: Counters, after: Counters, seconds: list[float]) -> Figures:
    queried_tokens = after.queried_tokens - before.queried_tokens
    cached_tokens = after.cached_tokens - before.cached_tokens
    texts = [end - start for start, end in zip(before.texts, after.texts, strict=True)]
    return {
        "requests": len(seconds),
        "prompt_tokens": round(queried_tokens),
        "cached": round(cached_tokens / queried_tokens, 3),
        "busiest_over_mean": round(max(texts) / mean(texts), 2),
        "engine_cpu_s": round(after.cpu_s - before.cpu_s, 1),
        "seconds_p50": round(median(seconds), 2),
        # Of the whole machine: with other work on it, more requests are open at a time.
        "load_average": round(os.getloadavg()[0], 1),
    }
