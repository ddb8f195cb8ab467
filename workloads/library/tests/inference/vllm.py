"""A substitute for vLLM, which needs a GPU: the names and signatures that the example uses.

The predicting process imports it as `vllm`. A completion is the reversed prompt. While a file
`hold` exists next to the model, only the first call is answered.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

__version__ = "stand-in"
# vLLM reads both when it is imported.
assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
assert os.environ["VLLM_BATCH_INVARIANT"] == "1"


class SamplingParams:
    def __init__(self, *, temperature: float = 1.0, max_tokens: int | None = 16) -> None:
        assert temperature == 0.0, "without greedy decoding a retry may differ"


class LLM:
    def __init__(self, model: str, *, seed: int | None = None) -> None:
        self._hold = Path(model).with_name("hold")
        self._calls = 0

    def generate(
        self, prompts: Sequence[str], sampling_params: SamplingParams, *, use_tqdm: bool = True
    ) -> list[SimpleNamespace]:
        self._calls += 1
        while self._calls > 1 and self._hold.exists():
            time.sleep(0.01)
        return [SimpleNamespace(outputs=[_reverse(prompt)]) for prompt in prompts]


def _reverse(prompt: str) -> SimpleNamespace:
    return SimpleNamespace(
        text=prompt[::-1],
        token_ids=list(prompt.encode()),
        finish_reason="stop",
    )
