"""A server as tutorials write it, for comparison: the same prediction time, and no drain."""

import asyncio

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from workloads.library.tests.inference.server.playing_predictors import BATCH_S, ITEM_S


async def ready(_: Request) -> JSONResponse:
    return JSONResponse({"ready": True})


async def infer(request: Request) -> JSONResponse:
    await request.json()
    await asyncio.sleep(BATCH_S + ITEM_S)
    return JSONResponse({"outputs": []})


app = Starlette(
    routes=[
        Route("/v2/health/ready", ready),
        Route("/v2/models/model/infer", infer, methods=["POST"]),
    ]
)
