"""A headless Chromium on one page, through the DevTools protocol: what it complained about, what it
shows.
"""

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
PATIENCE_S = 60


def binary() -> str | None:
    return (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )


@dataclass
class Page:
    socket: websocket.WebSocket
    complaints: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])
    _number: int = 0
    _loaded: bool = False

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        self.socket.send(
            json.dumps(
                {
                    "id": self._number,
                    "method": method,
                    "params": params,
                }
            )
        )
        while True:
            message = self._receive()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]

    def open(self, page: Path | str) -> None:
        """A file or an address."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self._loaded = False
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not self._loaded:
            self._receive()

    def evaluate(self, expression: str) -> Any:
        done = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def look(self, *, dark: bool = False, media: str = "screen", width: int = 1100) -> None:
        scheme = [
            {
                "name": "prefers-color-scheme",
                "value": "dark" if dark else "light",
            }
        ]
        self.call("Emulation.setEmulatedMedia", media=media, features=scheme)
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
    """`profile`: a new folder for what the browser keeps."""
    executable = binary()
    assert executable
    command = [executable, *FLAGS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = _port(process, profile / "DevToolsActivePort")
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


def _port(process: subprocess.Popen[bytes], announced: Path) -> int:
    """The browser writes the port that it was given as soon as it listens."""
    lines = lambda: announced.exists() and announced.read_text().splitlines()  # noqa: E731
    alive = lambda: process.poll() is None  # noqa: E731
    return int(
        until(
            lines,
            "where the browser listens",
            alive=alive,
            within_s=PATIENCE_S,
        )[0]
    )


def _page_address(port: int) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/json/new", method="PUT")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)["webSocketDebuggerUrl"]
