"""What the clients of object stores have in common: a shard is given to them as a file, and their errors become ours."""

from collections.abc import Callable


class MemoryFile:
    """Memory that a client reads, and reads again when it tries again. A store's own class decides what a read gives."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def next_bytes(self, size: int) -> memoryview:
        """Not copied; all that is left where `size` is negative."""
        found = self._data[self._at : len(self._data) if size < 0 else self._at + size]
        self._at += len(found)
        return found

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, len(self._data))[whence]
        return self._at


class Translated:
    """Around calls of a client: what it raises becomes what `ours` makes of it; None lets it pass as it is."""

    def __init__(self, name: str, ours: Callable[[BaseException, str], Exception | None]) -> None:
        self._name, self._ours = name, ours

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and (found := self._ours(error, self._name)) is not None:
            raise found from error
