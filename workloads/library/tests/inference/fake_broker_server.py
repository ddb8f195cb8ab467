"""A server of the fake broker with Google's wire protocol, for real clients in any process.

Use `with serve(FakeBroker()) as address:` and PUBSUB_EMULATOR_HOST=address in the clients.
"""

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.api_core import exceptions
from google.pubsub_v1 import types

from workloads.library.tests.inference.fake_broker import FakeBroker

# The share of the client's timeout after which an empty pull is answered.
_POLL_SHARE = 0.8


@contextmanager
def serve(broker: FakeBroker) -> Generator[str]:
    """Serves a broker; yields host:port."""
    server = grpc.server(ThreadPoolExecutor(32, thread_name_prefix="broker"))
    server.add_generic_rpc_handlers(_make_handlers(broker))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()


def _make_handlers(broker: FakeBroker) -> list[grpc.GenericRpcHandler]:
    def publish(request: types.PublishRequest, _: float) -> bytes:
        message_ids: list[str] = []
        for message in request.messages:
            message_ids.append(broker.publish(request.topic, message.data).result())
        response = types.PublishResponse(message_ids=message_ids)
        return types.PublishResponse.serialize(response)

    def pull(request: types.PullRequest, timeout_s: float) -> bytes:
        try:
            response = broker.pull(
                request=request,
                timeout=_POLL_SHARE * timeout_s,
            )
        except exceptions.DeadlineExceeded:
            return b""
        return types.PullResponse.serialize(response)

    def acknowledge(request: types.AcknowledgeRequest, _: float) -> None:
        broker.acknowledge(request=request)

    def modify(request: types.ModifyAckDeadlineRequest, _: float) -> None:
        broker.modify_ack_deadline(request=request)

    publisher = {"Publish": _make_method(publish, types.PublishRequest)}
    subscriber = {
        "Pull": _make_method(pull, types.PullRequest),
        "Acknowledge": _make_method(acknowledge, types.AcknowledgeRequest),
        "ModifyAckDeadline": _make_method(modify, types.ModifyAckDeadlineRequest),
    }
    make_handler = grpc.method_handlers_generic_handler
    return [
        make_handler("google.pubsub.v1.Publisher", publisher),
        make_handler("google.pubsub.v1.Subscriber", subscriber),
    ]


def _make_method(
    handle: Callable[[Any, float], bytes | None], request_type: Any
) -> grpc.RpcMethodHandler:
    def behavior(request: Any, context: Any) -> bytes:
        try:
            return handle(request, context.time_remaining() or 5.0) or b""
        except exceptions.ServiceUnavailable as error:
            return context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    return grpc.unary_unary_rpc_method_handler(
        behavior, request_deserializer=request_type.deserialize
    )
