"""A substitute for Google's proxy, with its flags, health check and port; it connects to the
database of the lab's host.
"""

import signal
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FLAGS = {}
for _word in sys.argv[1:]:
    if _word.startswith("--"):
        _flag, _, _value = _word.removeprefix("--").partition("=")
        FLAGS[_flag] = _value
PORT = int(FLAGS["port"])


def gateway():
    """Returns the lab host's address as a pod sees it: the gateway of its network."""
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == "00000000":
            return socket.inet_ntoa(bytes.fromhex(fields[2])[::-1])
    sys.exit("no way out of this network")


def copy(source, target):
    while piece := source.recv(1 << 16):
        target.sendall(piece)
    target.shutdown(socket.SHUT_WR)


def join(client):
    with client, socket.create_connection((gateway(), PORT)) as server:
        back = threading.Thread(
            target=copy,
            args=(server, client),
            daemon=True,
        )
        back.start()
        copy(client, server)
        back.join()


class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/startup" else 404)
        self.end_headers()


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0 if "exit-zero-on-sigterm" in FLAGS else 143))
health = ThreadingHTTPServer((FLAGS["http-address"], int(FLAGS["http-port"])), Health)
threading.Thread(target=health.serve_forever, daemon=True).start()
with socket.create_server(("127.0.0.1", PORT)) as listener:
    while True:
        threading.Thread(
            target=join,
            args=(listener.accept()[0],),
            daemon=True,
        ).start()
