"""The fake broker behind Google's own wire protocol, so that real clients of any process can use
it.

`with serve(FakeBroker()) as address:` and PUBSUB_EMULATOR_HOST=address elsewhere.
"""

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.api_core import exceptions
from google.pubsub_v1 import types

from workloads.library.tests.inference.fake_broker import FakeBroker

# Below the client's own timeout, so that an empty pull is an answer.
_POLL_SHARE = 0.8


@contextmanager
def serve(broker: FakeBroker) -> Generator[str]:
    """Yields host:port."""
    server = grpc.server(ThreadPoolExecutor(32, thread_name_prefix="broker"))
    server.add_generic_rpc_handlers(_handlers(broker))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()


def _handlers(broker: FakeBroker) -> list[grpc.GenericRpcHandler]:
    def publish(request: types.PublishRequest, _: float) -> bytes:
        sent = [broker.publish(request.topic, message.data) for message in request.messages]
        return types.PublishResponse.serialize(
            types.PublishResponse(message_ids=[each.result() for each in sent])
        )

    def pull(request: types.PullRequest, left_s: float) -> bytes:
        try:
            return types.PullResponse.serialize(
                broker.pull(request=request, timeout=_POLL_SHARE * left_s)
            )
        except exceptions.DeadlineExceeded:
            return b""

    services = {
        "Publisher": {"Publish": _method(publish, types.PublishRequest)},
        "Subscriber": {
            "Pull": _method(pull, types.PullRequest),
            "Acknowledge": _method(
                lambda r, _: broker.acknowledge(request=r), types.AcknowledgeRequest
            ),
            "ModifyAckDeadline": _method(
                lambda r, _: broker.modify_ack_deadline(request=r), types.ModifyAckDeadlineRequest
            ),
        },
    }
    return [
        grpc.method_handlers_generic_handler(f"google.pubsub.v1.{name}", found)
        for name, found in services.items()
    ]


def _method(answer: Callable[[Any, float], bytes | None], kind: Any) -> grpc.RpcMethodHandler:
    def behaviour(request: Any, context: Any) -> bytes:
        try:
            return answer(request, context.time_remaining() or 5.0) or b""
        except exceptions.ServiceUnavailable as error:
            return context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    return grpc.unary_unary_rpc_method_handler(behaviour, request_deserializer=kind.deserialize)
