"""The bench's predictor behind Ray Serve; runs in an environment with Ray."""

import asyncio
import signal
import sys

import ray
from ray import serve
from starlette.requests import Request

from workloads.library.tests.inference.server.playing_predictors import GpuLike

BATCH_ITEMS = int(sys.argv[1])


@serve.deployment(num_replicas=1, max_ongoing_requests=1024)
class Model:
    def __init__(self):
        self.model = GpuLike()

    # Its default wait: with none every batch holds one item.
    @serve.batch(max_batch_size=BATCH_ITEMS, batch_wait_timeout_s=0.01)
    async def predict(self, bodies: list[bytes]):
        # Beside the loop: while one batch is computed the next one is read.
        return await asyncio.to_thread(self.model.predict, bodies)

    async def __call__(self, request: Request):
        return await self.predict((await request.json())["text"].encode())


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, logging_level="warning")
    serve.start(
        http_options={"host": "127.0.0.1", "port": int(sys.argv[2])}, logging_config={"enable_access_log": False}
    )
    serve.run(Model.bind(), route_prefix="/predict")
    signal.pause()
