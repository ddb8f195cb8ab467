"""Streams of the tiny model, and what vLLM has counted of them."""

from dataclasses import dataclass
from typing import Any

from holdfast.vocabulary.serving import VLLM_RUNNING
from workloads.library.tests.inference.router.fleet import Stream, metric
from workloads.library.tests.llm.pods import SERVICE, Pod
from workloads.library.tests.processes import until

ENDED_TEXTS = "vllm:request_success_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATED_TOKENS = "vllm:generation_tokens_total"


WORDS = 12
PATIENCE_S = 600.0


def make_prompt(number: int, words: int = WORDS) -> str:
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


@dataclass(frozen=True, kw_only=True)
class Handled:
    """Counters of one vLLM."""

    texts: float
    """Texts that it has ended at their length."""
    tokens: float
    """Tokens of all prompts and texts."""

    def since(self, earlier: "Handled") -> "Handled":
        return Handled(texts=self.texts - earlier.texts, tokens=self.tokens - earlier.tokens)


def wait_until_idle(pod: Pod) -> None:
    until(lambda: not metric(pod.client, VLLM_RUNNING), "an idle server")


def count_handled(pod: Pod) -> Handled:
    """Reads the counters, once vLLM is idle."""
    wait_until_idle(pod)
    return Handled(
        texts=metric(pod.client, ENDED_TEXTS, 'finished_reason="length"'),
        tokens=metric(pod.client, PROMPT_TOKENS) + metric(pod.client, GENERATED_TOKENS),
    )


def wait_for(streams: list[Stream]) -> None:
    until(
        lambda: all(stream.payloads[-1:] == [b"[DONE]"] or stream.error for stream in streams),
        "the end of all streams",
        within_s=PATIENCE_S,
        pause_s=0.1,
    )
