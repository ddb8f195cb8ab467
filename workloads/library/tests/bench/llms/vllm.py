"""Streams on the real vLLM, one of whose two pods is killed while all streams are open."""

import time
from pathlib import Path
from typing import Any

from holdfast.vocabulary.serving import ROUTER_MOVED
from workloads.library.tests.inference.router.fleet import Stream, metric
from workloads.library.tests.llm import install
from workloads.library.tests.llm.pods import running_pods, running_router
from workloads.library.tests.llm.streams import (
    PATIENCE_S,
    WORDS,
    count_handled,
    find_busiest,
    list_tokens,
    make_body,
    wait_for,
)
from workloads.library.tests.processes import until

TOKENS = 500


def run_vllm(folder: Path, *, streams: int) -> dict[str, Any]:
    """Counts what clients got, and the tokens that the surviving vLLM handled.

    A text that ends at the survivor passes each token to it once: in the prompt of a continuation,
    or as a token of its own.
    """
    home = install.install()
    model = install.make_model(home)
    bodies = [make_body(number, TOKENS) for number in range(streams)]
    with running_pods(folder, home, model) as pods, running_router(folder, pods) as client:
        start = time.monotonic()
        undisturbed = read_all(client.port, bodies)
        calm_s = time.monotonic() - start
        handled = {pod.folder: count_handled(pod) for pod in pods}
        opened = [Stream(client.port, body) for body in bodies]
        until(
            lambda: all(len(stream.payloads) > 10 for stream in opened),
            "the first tokens of all streams",
            within_s=PATIENCE_S,
        )
        victim = find_busiest(pods)
        victim.kill()
        wait_for(opened)
        (survivor,) = (pod for pod in pods if pod is not victim)
        work = count_handled(survivor).since(handled[survivor.folder])
        moved = metric(client, ROUTER_MOVED)
    cut = 0
    miscounted = 0
    different = 0
    for stream, calm in zip(opened, undisturbed, strict=True):
        tokens = list_tokens(stream)
        cut += not stream.is_whole
        miscounted += len(tokens) != TOKENS
        different += tokens != list_tokens(calm)
    return {
        "streams": streams,
        "tokens_per_s_undisturbed": round(streams * TOKENS / calm_s),
        "moved": moved,
        "cut": cut,
        "counts_wrong": miscounted,
        "texts_different": different,
        "survivor_texts": work.texts,
        "survivor_tokens": work.tokens,
        "survivor_tokens_expected": work.texts * (WORDS + TOKENS),
    }


def read_all(port: int, bodies: list[dict[str, Any]]) -> list[Stream]:
    streams = [Stream(port, body) for body in bodies]
    wait_for(streams)
    return streams
