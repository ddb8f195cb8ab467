"""Streams on the real vLLM, of which one of two pods is killed in the middle of all."""

import time
from pathlib import Path
from typing import Any

from holdfast.vocabulary.serving import ROUTER_MOVED
from workloads.library.tests.inference.router.fleet import Stream, metric
from workloads.library.tests.llm import install
from workloads.library.tests.llm.pods import running_pods, running_router
from workloads.library.tests.llm.streams import (
    count_handled,
    count_prompt,
    find_busiest,
    list_tokens,
    make_body,
)
from workloads.library.tests.processes import until

TOKENS = 500
"""Tokens of a stream: so many that the first one has not ended when the last one begins."""
PATIENCE_S = 600.0


def run_vllm(folder: Path, *, streams: int) -> dict[str, Any]:
    """Counts what clients got, and the tokens that the surviving vLLM handled.

    Every stream ends at the survivor, which gets each token once: in the prompt of a continuation,
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
        survivor_tokens = count_handled(survivor) - handled[survivor.folder]
        moved = metric(client, ROUTER_MOVED)
    pairs = list(zip(opened, undisturbed, strict=True))
    return {
        "streams": streams,
        "tokens_per_s_undisturbed": round(streams * TOKENS / calm_s),
        "moved": moved,
        "cut": sum(not stream.is_whole for stream in opened),
        "counts_wrong": sum(len(list_tokens(stream)) != TOKENS for stream in opened),
        "texts_different": sum(list_tokens(stream) != list_tokens(calm) for stream, calm in pairs),
        "survivor_tokens": survivor_tokens,
        "survivor_tokens_expected": sum(count_prompt(body) + TOKENS for body in bodies),
    }


def read_all(port: int, bodies: list[dict[str, Any]]) -> list[Stream]:
    streams = [Stream(port, body) for body in bodies]
    wait_for(streams)
    return streams


def wait_for(streams: list[Stream]) -> None:
    until(
        lambda: all(stream.payloads[-1:] == [b"[DONE]"] or stream.error for stream in streams),
        "the end of all streams",
        within_s=PATIENCE_S,
        pause_s=0.1,
    )
