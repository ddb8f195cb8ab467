"""Drives a headless Chromium through the DevTools protocol and records its complaints."""

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import websocket

from workloads.library.tests.processes import until

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)
PATIENCE_S = 240


def binary() -> str | None:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path:
            return path
    return None


@dataclass
class Page:
    socket: websocket.WebSocket
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _number: int = 0
    _loaded: bool = False

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        request = {
            "id": self._number,
            "method": method,
            "params": params,
        }
        self.socket.send(json.dumps(request))
        while True:
            message = self._receive()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]

    def open(self, page: Path | str) -> None:
        """Opens a file or an address, and returns once it has loaded."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self._loaded = False
        url = page if isinstance(page, str) else page.resolve().as_uri()
        self.call("Page.navigate", url=url)
        while not self._loaded:
            self._receive()

    def evaluate(self, expression: str) -> Any:
        response = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in response, response
        return response["result"].get("value")

    def look(self, *, dark: bool = False, media: str = "screen", width: int = 1100) -> None:
        scheme = {
            "name": "prefers-color-scheme",
            "value": "dark" if dark else "light",
        }
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )

    def _receive(self) -> dict[str, Any]:
        message = json.loads(self.socket.recv())
        params = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.complaints.append(params["entry"]["text"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params))
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case _:
                pass
        return message


@contextmanager
def chromium(profile: Path) -> Generator[Page]:
    """Runs a browser; `profile` is a new folder for its data."""
    executable = binary()
    assert executable
    command = [executable, *FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = _read_port(process, profile / "DevToolsActivePort")
        socket = websocket.create_connection(
            _page_address(port), timeout=PATIENCE_S, suppress_origin=True
        )
        try:
            yield Page(socket)
        finally:
            socket.shutdown()
    finally:
        process.kill()
        process.wait()


def _read_port(process: subprocess.Popen[bytes], port_file: Path) -> int:
    """Returns the port of the browser, which writes it to a file as soon as it listens."""
    lines = until(
        lambda: port_file.exists() and port_file.read_text().splitlines(),
        "where the browser listens",
        alive=lambda: process.poll() is None,
        within_s=PATIENCE_S,
    )
    return int(lines[0])


def _page_address(port: int) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/json/new", method="PUT")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=PATIENCE_S) as response:
        return json.load(response)["webSocketDebuggerUrl"]
