"""Writes a version that nodes hold in memory to the store, when a gang gives its nodes back.

Decision: infra/decisions/0137.
"""

from collections.abc import Sequence

from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.failpoints import failpoint
from holdfast.checkpoint.format import Manifest
from holdfast.checkpoint.format.commit import CommitState, commit, committed_steps, read_commit
from holdfast.checkpoint.peers.keeper_client import PeerPlaces
from holdfast.checkpoint.peers.storage import Offer, PeerStorage, list_offers
from holdfast.checkpoint.restore.reader import open_step
from holdfast.checkpoint.stores.storage import Storage, crc32c, put_object
from holdfast.runtime import logs

_NO_RANK = -1


def store_newest(storage: Storage, places: PeerPlaces, timeout_s: float) -> int:
    """Writes the newest whole version in memory to the store, unless the store has one as new.

    Returns its step, or 0 if nothing was written. Raises StorageError, and Fenced if another
    trainer has taken the run.
    """
    for offer in _list_newer(storage, places):
        for copies_first in (False, True):
            try:
                _store(storage, places, offer, timeout_s, copies_first=copies_first)
            except Damaged as error:
                logs.warning("save", f"step {offer.step} in memory is damaged: {error}")
                continue
            return offer.step
    return 0


def _list_newer(storage: Storage, places: PeerPlaces) -> Sequence[Offer]:
    committed = committed_steps(storage, places.run)
    newest = read_commit(storage, places.run, committed[0]) if committed else None
    above = max(committed, default=-1) + 1
    return list_offers(places, above=above, start=newest.epoch if newest else 0)


def _store(
    storage: Storage,
    places: PeerPlaces,
    offer: Offer,
    timeout_s: float,
    *,
    copies_first: bool,
) -> None:
    memory = PeerStorage(places, [offer], _NO_RANK, copies_first=copies_first)
    opened = open_step(memory, places.run, offer.step)
    for manifest in opened.manifests:
        _put_shards(storage, memory, manifest)
        payload = memoryview(bytearray(manifest.encode()))
        put_object(storage, manifest.name, payload, crc32c(payload))
    failpoint("memory.stored")
    commit(
        storage,
        opened.manifests[0],
        state=CommitState(epoch=opened.commit.epoch),
        timeout_s=timeout_s,
        abandoned=lambda _: False,
    )


def _put_shards(storage: Storage, memory: PeerStorage, manifest: Manifest) -> None:
    for index, shard in enumerate(manifest.shards):
        name = manifest.shard_name(index)
        # One shard at a time: the node's memory is full of shards already.
        data = memoryview(bytearray(shard.bytes))
        for start in range(0, shard.bytes, memory.read_bytes):
            memory.read_into(name, start, data[start : start + memory.read_bytes])
        if crc32c(data) != shard.crc32c:
            raise Damaged(f"{name} is not what was staged")
        put_object(storage, name, data, shard.crc32c)
