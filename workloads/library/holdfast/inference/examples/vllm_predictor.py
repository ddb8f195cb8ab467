# pyright: basic, reportMissingImports=false
"""A batch predictor that answers prompts with vLLM.

Run `holdfast batch run JOB --predictor MODULE:build --model FOLDER`, where MODULE is this one. Each
item is a prompt, and its result is a text. Every prompt is stored once, however often workers are
killed: another worker computes what a killed one had not committed. Needs vLLM and
holdfast-gke[postgres,gcs,pubsub].
"""

import os
from collections.abc import Mapping, Sequence

from holdfast.inference.predictor.spec import PredictorSpec, digest_folder, require_model_folder
from holdfast.inference.values import Value

MAX_TOKENS = 256


class VllmPredictor:
    def __init__(self, folder: str) -> None:
        self._folder = require_model_folder(folder)

    @property
    def configuration(self) -> Mapping[str, object]:
        """Everything that determines a result, so that a job never mixes weights or settings."""
        return {
            "predictor": "vllm",
            "version": self._version,
            "batch_invariant": os.environ["VLLM_BATCH_INVARIANT"],
            "max_tokens": MAX_TOKENS,
            "model": digest_folder(self._folder),
        }

    def load(self) -> None:
        # An engine in another process may survive a kill of this one, and keep the GPU's memory.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        # Otherwise the numbers, and with them a text, depend on the rest of the batch. It needs
        # compute capability 8.0; set it to 0 in the job file's `env` for older GPUs.
        os.environ.setdefault("VLLM_BATCH_INVARIANT", "1")
        os.environ["HF_HUB_OFFLINE"] = "1"
        import vllm  # reads these variables

        self._version = vllm.__version__
        self._sampling = vllm.SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
        self._engine = vllm.LLM(
            model=str(self._folder),
            seed=0,
        )

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        # A body that is not UTF-8 raises an error, and only that item fails.
        prompts = [body.decode() for body in bodies]
        values: list[Value] = []
        for response in self._engine.generate(prompts, self._sampling, use_tqdm=False):
            completion = response.outputs[0]
            values.append(
                {
                    "text": completion.text,
                    "tokens": len(completion.token_ids),
                    "finished": completion.finish_reason,
                }
            )
        return values


def build(spec: PredictorSpec) -> VllmPredictor:
    return VllmPredictor(spec.model)
