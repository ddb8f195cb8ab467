"""The bench's predictor behind BentoML; runs in an environment with BentoML."""

import os

import bentoml

from workloads.library.tests.inference.server.playing_predictors import GpuLike


@bentoml.service(workers=1, threads=1, traffic={"timeout": 60}, logging={"access": {"enabled": False}})
class Model:
    def __init__(self) -> None:
        self.model = GpuLike()

    @bentoml.api(batchable=True, max_batch_size=int(os.environ["BATCH_ITEMS"]), max_latency_ms=10_000)
    def predict(self, texts: list[str]) -> list[dict]:
        return self.model.predict([text.encode() for text in texts])
