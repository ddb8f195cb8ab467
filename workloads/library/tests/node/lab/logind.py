"""The part of systemd-logind that the kubelet's graceful node shutdown talks to, on a private bus.

The kubelet takes a delay lock at its start and holds it until its pods are down;
`PrepareForShutdown` is how it hears of the end, on a Spot VM as here.
"""

# No `from __future__ import annotations`: dbus-fast reads the D-Bus signatures from live
# annotations.
import asyncio
import os

from dbus_fast.aio import MessageBus
from dbus_fast.service import PropertyAccess, ServiceInterface, dbus_property, method, signal

NAME = "org.freedesktop.login1"
PATH = "/org/freedesktop/login1"


class Logind(ServiceInterface):
    def __init__(self, delay_s: int) -> None:
        super().__init__(f"{NAME}.Manager")
        self._delay_us = delay_s * 1_000_000
        self.inhibited = 0
        self._locks: list[int] = []

    # A shorter delay than the node's shutdown period makes the kubelet rewrite logind.conf and give
    # up.
    @dbus_property(access=PropertyAccess.READ)
    def InhibitDelayMaxUSec(self) -> "t":  # noqa: F821
        return self._delay_us

    @method()
    def Inhibit(self, what: "s", who: "s", why: "s", mode: "s") -> "h":  # noqa: F821
        """Gives a lock: the write end of a pipe. It is free when its holder closes it."""
        read_end, write_end = os.pipe()
        self._locks.append(read_end)
        self.inhibited += 1
        # ours, once the holder has its copy
        asyncio.get_running_loop().call_later(5, os.close, write_end)
        return write_end

    @signal()
    def PrepareForShutdown(self, start: "b") -> "b":  # noqa: F821
        return start

    async def wait_for_release(self, within_s: float) -> bool:
        """Waits until all locks are given back, and returns whether that was in time."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(within_s):
                for lock in self._locks:
                    await loop.run_in_executor(None, os.read, lock, 1)
        except TimeoutError:
            return False
        return True


async def serve(address: str, delay_s: int) -> Logind:
    bus = await MessageBus(bus_address=address, negotiate_unix_fd=True).connect()
    logind = Logind(delay_s)
    bus.export(PATH, logind)
    await bus.request_name(NAME)
    return logind
