"""The HTTP server of the tests takes a burst of clients, however late it accepts them."""

import socket
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler

from tests.support import HttpServer

CLIENTS = 100


def test_many_clients_connect_before_one_is_accepted() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(HttpServer(("127.0.0.1", 0), BaseHTTPRequestHandler))
        for _ in range(CLIENTS):
            stack.enter_context(socket.create_connection(server.server_address[:2]))
