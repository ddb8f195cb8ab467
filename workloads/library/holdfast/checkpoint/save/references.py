"""Count which commits of a run name a shared shard, and delete those that none names any more."""

from collections.abc import Mapping

from holdfast.checkpoint.errors import Damaged, NotFound
from holdfast.checkpoint.format import Commit
from holdfast.checkpoint.format.decoding import MAX_MANIFEST_BYTES, decode_manifest
from holdfast.checkpoint.stores.storage import Storage, read_object
from holdfast.support import object_names
from holdfast.support.errors import InputError

SharedNames = dict[str, frozenset[str]]
"""Names of shared objects by the attempt that names them. An attempt is never changed."""


class References:
    """The shared objects that the commits of a run name."""

    def __init__(self, storage: Storage, names: SharedNames) -> None:
        self._storage = storage
        self._names = names
        self._is_known = True
        """False if a manifest cannot be read: then nothing is deleted."""

    def read(self, commits: Mapping[int, Commit]) -> None:
        """Read what the commits name. Call it before any of them is deleted."""
        runs = {commit.run for commit in commits.values()}
        if not any(self._shares_objects(run) for run in runs):
            return  # a run that shares nothing costs one request
        for commit in commits.values():
            if commit.attempt not in self._names:
                self._read_commit(commit)

    def _shares_objects(self, run: str) -> bool:
        names = self._storage.list(object_names.common_prefix(run))
        return next(names, None) is not None

    def _read_commit(self, commit: Commit) -> None:
        names: set[str] = set()
        try:
            for rank in range(commit.world_size):
                name = object_names.manifest_object(commit.run, commit.step, commit.attempt, rank)
                data = read_object(self._storage, name, limit=MAX_MANIFEST_BYTES)
                names |= decode_manifest(data, commit, rank).common_names
        except (Damaged, EOFError, InputError, NotFound):
            self._is_known = False
            return
        self._names[commit.attempt] = frozenset(names)

    def delete_orphans(
        self,
        run: str,
        commits: Mapping[int, Commit],
        oldest: float,
    ) -> list[str]:
        """Delete what only deleted commits named, and return the names.

        `commits` are those that are left. An object that no commit ever named may belong to a save
        in flight: it stays until it is older than `oldest`.
        """
        attempts = {commit.attempt for commit in commits.values()}
        used: set[str] = set()
        released: set[str] = set()
        for attempt, names in self._names.items():
            if attempt in attempts:
                used |= names
            else:
                released |= names
        deleted: list[str] = []
        if self._is_known:
            for stat in list(self._storage.list(object_names.common_prefix(run))):
                is_old = stat.name in released or stat.modified < oldest
                if stat.name not in used and is_old:
                    self._storage.delete(stat.name)
                    deleted.append(stat.name)
        for attempt in [*self._names]:
            if attempt not in attempts:
                del self._names[attempt]
        return deleted
