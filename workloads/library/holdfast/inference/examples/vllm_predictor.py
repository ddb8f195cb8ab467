# pyright: basic, reportMissingImports=false
"""Prompts answered by vLLM in a batch: `holdfast batch run JOB --predictor MODULE:build --model
FOLDER`.

MODULE is this one; each item is a prompt, its result a text. However often workers are killed,
every prompt is stored once: what a killed worker had not committed, another one computes again.
Needs vLLM and holdfast-gke[postgres,gcs].
"""

import os
from collections.abc import Mapping, Sequence

from holdfast.inference.predictor.spec import PredictorSpec, checked_folder, digest_of
from holdfast.inference.values import Value

MAX_TOKENS = 256


class VllmPredictor:
    def __init__(self, folder: str) -> None:
        self._folder = checked_folder(folder)

    @property
    def configuration(self) -> Mapping[str, object]:
        """Other weights or settings are another job's results, and never mixed with these."""
        made_by = {
            "predictor": "vllm",
            "version": self._version,
            "max_tokens": MAX_TOKENS,
        }
        return made_by | {"model": digest_of(self._folder)}

    def load(self) -> None:
        # An engine in a process of its own may outlive a kill of this one, and keep the GPU's
        # memory.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        # Else the numbers, and with them a text, depend on what else is in the batch. Compute
        # capability 8.0 and above.
        os.environ["VLLM_BATCH_INVARIANT"] = "1"
        os.environ["HF_HUB_OFFLINE"] = "1"
        import vllm  # reads these variables

        self._version = vllm.__version__
        self._sampling = vllm.SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
        self._engine = vllm.LLM(model=str(self._folder), seed=0)

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        prompts = [body.decode() for body in bodies]  # a body that is no UTF-8 is its own failure
        answers = []
        for found in self._engine.generate(prompts, self._sampling, use_tqdm=False):
            answers.append(found.outputs[0])
        return [
            {
                "text": one.text,
                "tokens": len(one.token_ids),
                "finished": one.finish_reason,
            }
            for one in answers
        ]


def build(spec: PredictorSpec) -> VllmPredictor:
    return VllmPredictor(spec.model)
