"""Streams of the tiny model, and what vLLM has counted of them."""

from typing import Any

from holdfast.vocabulary.serving import VLLM_RUNNING
from workloads.library.tests.inference.router.fleet import Stream, metric
from workloads.library.tests.llm.pods import SERVICE, Pod
from workloads.library.tests.processes import until

PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATED_TOKENS = "vllm:generation_tokens_total"


def make_prompt(number: int, words: int = 12) -> str:
    return " ".join(f"w{(number * 31 + place * 7) % 300}" for place in range(words))


def make_body(number: int, count: int) -> dict[str, Any]:
    """Returns a request for `count` tokens by greedy decoding."""
    return {
        "model": SERVICE.name,
        "prompt": make_prompt(number),
        "max_tokens": count,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }


def count_prompt(body: dict[str, Any]) -> int:
    return len(body["prompt"].split())


def list_tokens(stream: Stream) -> list[int]:
    tokens: list[int] = []
    for event in stream.events:
        for choice in event.get("choices", ()):
            tokens += choice.get("token_ids") or ()
    return tokens


def find_busiest(pods: list[Pod]) -> Pod:
    return max(pods, key=lambda pod: metric(pod.client, VLLM_RUNNING))


def count_handled(pod: Pod) -> float:
    """Returns the tokens of all prompts and texts that vLLM has handled, once it is idle."""
    until(lambda: not metric(pod.client, VLLM_RUNNING), "an idle server")
    return metric(pod.client, PROMPT_TOKENS) + metric(pod.client, GENERATED_TOKENS)
