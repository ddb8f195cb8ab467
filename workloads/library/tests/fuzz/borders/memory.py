"""A bucket in memory."""

from collections.abc import Iterator

from holdfast.checkpoint.errors import NotFound
from holdfast.checkpoint.stores import Stat


class Memory:
    """A store whose objects may be replaced and deleted."""

    read_bytes = 1 << 20

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        """Contents of the objects, by name."""

    def stat(self, name: str) -> Stat:
        if name not in self.objects:
            raise NotFound(name)
        return Stat(
            name=name,
            bytes=len(self.objects[name]),
            modified=0.0,
        )

    def list(self, prefix: str) -> Iterator[Stat]:
        return (self.stat(name) for name in self.objects if name.startswith(prefix))

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        data = self.objects[name][start : start + len(into)]
        if len(data) < len(into):
            raise EOFError(name)
        into[:] = data

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        self.objects[name] = bytes(data)

    def delete(self, name: str) -> None:
        del self.objects[name]

    def move(self, source: str, target: str, *, replace: bool = False) -> None:
        self.objects[target] = self.objects.pop(source)
