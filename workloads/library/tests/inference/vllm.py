"""Stands in for vLLM, which wants a GPU: what the example uses of it, by vLLM's names and with its signatures.

Imported as `vllm` by the process that predicts. An answer is the prompt backwards. While a file `hold` lies beside the
model, only the first call is answered.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__version__ = "stand-in"
# Both are read when the real one is imported.
assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0" and os.environ["VLLM_BATCH_INVARIANT"] == "1"


@dataclass(kw_only=True)
class SamplingParams:
    temperature: float = 1.0
    max_tokens: int | None = 16


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: Sequence[int]
    finish_reason: str | None


@dataclass
class RequestOutput:
    prompt: str
    outputs: list[CompletionOutput]


class LLM:
    def __init__(self, model: str, *, seed: int | None = None) -> None:
        self._hold, self._calls = Path(model).with_name("hold"), 0

    def generate(
        self, prompts: Sequence[str], sampling_params: SamplingParams | None = None, *, use_tqdm: bool = True
    ) -> list[RequestOutput]:
        assert sampling_params is not None and sampling_params.temperature == 0.0, "greedy, or a retry may differ"
        self._calls += 1
        while self._calls > 1 and self._hold.exists():
            time.sleep(0.01)
        return [RequestOutput(p, [CompletionOutput(0, p[::-1], list(p.encode()), "stop")]) for p in prompts]
