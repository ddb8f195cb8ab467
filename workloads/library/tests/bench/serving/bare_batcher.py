"""The bench's predictor behind the least that batches: Starlette, a list, and a thread.

It checks nothing, bounds nothing, and loses its requests with a crash of the model.
"""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from holdfast.inference.values import Value
from workloads.library.tests.bench.serving.client import INFER
from workloads.library.tests.inference.server.playing_predictors import GpuLike


class Batcher:
    def __init__(self, batch_items: int) -> None:
        self._batch_items = batch_items
        self._model = GpuLike()
        self._thread = ThreadPoolExecutor(1)
        self._waiting: list[tuple[bytes, asyncio.Future[Value]]] = []
        self._wake = asyncio.Event()

    async def infer(self, request: Request) -> JSONResponse:
        content = await request.json()
        (text,) = content["inputs"][0]["data"]
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((text.encode(), answer))
        self._wake.set()
        return JSONResponse(await answer)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                batch = self._waiting[: self._batch_items]
                del self._waiting[: self._batch_items]
                bodies = [body for body, _ in batch]
                values = await loop.run_in_executor(self._thread, self._model.predict, bodies)
                for (_, answer), value in zip(batch, values, strict=True):
                    answer.set_result(value)


async def main(batch_items: int, port: int) -> None:
    batcher = Batcher(batch_items)
    app = Starlette(routes=[Route(INFER, batcher.infer, methods=["POST"])])
    config = uvicorn.Config(
        app,
        port=port,
        log_level="warning",
        access_log=False,
        http="httptools",
        loop="asyncio",
    )
    running = asyncio.create_task(batcher.run())
    await uvicorn.Server(config).serve()
    running.cancel()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
