"""Objects of saves that failed go at once: what a full disk holds of them is what the next save lacks.

Only where nobody can commit them any more: a deletion beside a commit would leave a checkpoint without its bytes.
"""

from contextlib import suppress

from holdfast.checkpoint.errors import AlreadyExists, StorageError, Transient
from holdfast.checkpoint.format import Manifest
from holdfast.checkpoint.storage import Storage
from holdfast.contract import object_names

# Of how many failed saves another rank may still be uploading its part.
REMEMBERED = 8


class FailedAttempts:
    """Of one rank. Rank 0 alone commits, so it clears an attempt whole; another rank clears what it wrote itself."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._failed: list[Manifest] = []

    def add(self, manifest: Manifest, error: Exception) -> None:
        # A commit whose answer was lost may stand after all: that attempt is left to retention.
        if not isinstance(error, Transient | AlreadyExists):
            self._failed = [*self._failed, manifest][-REMEMBERED:]

    def clear(self) -> None:
        """To be called again before each save: ranks that failed later, or not at all, wrote on meanwhile."""
        for manifest in self._failed:
            with suppress(StorageError, OSError):
                self._clear(manifest)

    def _clear(self, manifest: Manifest) -> None:
        prefix = object_names.attempt_prefix(manifest.run, manifest.step, manifest.attempt)
        mine = object_names.rank_prefix(manifest.run, manifest.step, manifest.attempt, manifest.rank)
        for found in list(self._storage.list(prefix)):
            if manifest.rank == 0 or found.name.startswith(mine):
                self._storage.delete(found.name)
