"""The connections of a server that wait for a request, in the order in which they can be closed."""

from typing import Protocol


class IdleConnection(Protocol):
    def close_idle(self) -> None:
        """Closes the connection, after what is left to send of its last response."""


class IdleConnections:
    """Makes room for new connections by closing idle ones.

    A connection that never sent a request is closed first. Of the others, which a proxy may use
    again, the one that is idle longest is closed first.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        """The maximum number of all connections of the server."""
        # Dictionaries keep the order and remove any connection at once.
        self._silent: dict[IdleConnection, None] = {}
        self._used: dict[IdleConnection, None] = {}

    def add(self, connection: IdleConnection, *, is_silent: bool) -> None:
        connections = self._silent if is_silent else self._used
        connections[connection] = None

    def discard(self, connection: IdleConnection) -> None:
        self._silent.pop(connection, None)
        self._used.pop(connection, None)

    def close_one(self) -> bool:
        """Closes a connection; returns False if none is idle."""
        connection = next(iter(self._silent or self._used), None)
        if connection is None:
            return False
        self.discard(connection)
        connection.close_idle()
        return True
