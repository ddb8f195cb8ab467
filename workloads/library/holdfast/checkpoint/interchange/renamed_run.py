"""A run's folder that was copied under another name, read under the name that its commits have."""

from collections.abc import Iterator
from dataclasses import replace

from holdfast.checkpoint.errors import Denied
from holdfast.checkpoint.stores.storage import Stat, Storage


class RenamedRun:
    """A view of a store in which the folder `folder` has the name `run`. It is only read."""

    def __init__(
        self,
        storage: Storage,
        run: str,
        folder: str,
    ) -> None:
        self._storage = storage
        self._run = f"{run}/"
        self._folder = f"{folder}/"
        self.read_bytes = storage.read_bytes

    def _locate(self, name: str) -> str:
        return self._folder + name.removeprefix(self._run)

    def read_into(
        self,
        name: str,
        start: int,
        into: memoryview,
    ) -> None:
        self._storage.read_into(self._locate(name), start, into)

    def list(self, prefix: str) -> Iterator[Stat]:
        for stat in self._storage.list(self._locate(prefix)):
            yield replace(stat, name=self._run + stat.name.removeprefix(self._folder))

    def stat(self, name: str) -> Stat:
        return replace(self._storage.stat(self._locate(name)), name=name)

    def put(
        self,
        name: str,
        data: memoryview,
        crc32c: str,
    ) -> None:
        del data, crc32c
        raise Denied(f"{name}: this view is only read")

    def delete(self, name: str) -> None:
        raise Denied(f"{name}: this view is only read")

    def move(
        self,
        source: str,
        target: str,
        *,
        replace: bool = False,
    ) -> None:
        del target, replace
        raise Denied(f"{source}: this view is only read")
