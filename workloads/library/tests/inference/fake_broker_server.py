"""The fake broker behind Google's own wire protocol, so that real clients of any process can use it.

`with serve(FakeBroker()) as address:` and PUBSUB_EMULATOR_HOST=address elsewhere.
"""

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.api_core import exceptions
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types

from workloads.library.tests.inference.fake_broker import FakeBroker

_STATUS = {
    exceptions.ServiceUnavailable: grpc.StatusCode.UNAVAILABLE,
    exceptions.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
}
# Below the client's own timeout, so that an empty pull is an answer.
_POLL_SHARE = 0.8


@contextmanager
def serve(broker: FakeBroker) -> Generator[str]:
    """Yields host:port."""
    server = grpc.server(ThreadPoolExecutor(32, thread_name_prefix="broker"))
    server.add_generic_rpc_handlers((_publisher(broker), _subscriber(broker)))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None).wait()


def _publisher(broker: FakeBroker) -> grpc.GenericRpcHandler:
    def publish(request: types.PublishRequest, context: Any) -> types.PublishResponse:
        sent = [broker.publish(request.topic, message.data) for message in request.messages]
        return types.PublishResponse(message_ids=[future.result() for future in sent])

    method = _method(publish, types.PublishRequest.deserialize, types.PublishResponse.serialize)
    return grpc.method_handlers_generic_handler("google.pubsub.v1.Publisher", {"Publish": method})


def _subscriber(broker: FakeBroker) -> grpc.GenericRpcHandler:
    def pull(request: types.PullRequest, context: Any) -> types.PullResponse:
        wanted = {"subscription": request.subscription, "max_messages": request.max_messages}
        try:
            return broker.pull(request=wanted, timeout=_POLL_SHARE * (context.time_remaining() or 5.0))
        except exceptions.DeadlineExceeded:
            return types.PullResponse()

    def acknowledge(request: types.AcknowledgeRequest, context: Any) -> Empty:
        broker.acknowledge(request={"subscription": request.subscription, "ack_ids": list(request.ack_ids)})
        return Empty()

    def extend(request: types.ModifyAckDeadlineRequest, context: Any) -> Empty:
        wanted = {
            "subscription": request.subscription,
            "ack_ids": list(request.ack_ids),
            "ack_deadline_seconds": request.ack_deadline_seconds,
        }
        broker.modify_ack_deadline(request=wanted)
        return Empty()

    methods = {
        "Pull": _method(pull, types.PullRequest.deserialize, types.PullResponse.serialize),
        "Acknowledge": _method(acknowledge, types.AcknowledgeRequest.deserialize, Empty.SerializeToString),
        "ModifyAckDeadline": _method(extend, types.ModifyAckDeadlineRequest.deserialize, Empty.SerializeToString),
    }
    return grpc.method_handlers_generic_handler("google.pubsub.v1.Subscriber", methods)


def _method(answer: Callable[[Any, Any], Any], read: Any, write: Any) -> Any:
    def behaviour(request: Any, context: Any) -> Any:
        try:
            return answer(request, context)
        except tuple(_STATUS) as error:
            return context.abort(_STATUS[type(error)], str(error))

    return grpc.unary_unary_rpc_method_handler(behaviour, request_deserializer=read, response_serializer=write)
