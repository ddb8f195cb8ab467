"""A step that nodes hold in memory, read through the storage interface, so that a restore verifies
it as it verifies a bucket.
"""

import mmap
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from holdfast.checkpoint.errors import Damaged, Denied, NotFound
from holdfast.checkpoint.format import Commit, ManifestDigest
from holdfast.checkpoint.format.decoding import parse_manifest
from holdfast.checkpoint.peers.keeper_client import PeerPlaces, Version
from holdfast.checkpoint.peers.protocol import Head, ask
from holdfast.checkpoint.stores.storage import Stat
from holdfast.support import object_names

MOST_OFFERS = 4
"""A node holds at most this many complete versions of a rank."""
_RANK = re.compile(r"/rank-(\d{5})[.-]")
NOWHERE = -1
_VersionOfStart = tuple[int, int, str, int]
"""Step, number of the trainer's start, attempt, number of ranks."""
_ShardsByRank = dict[int, list[tuple[int, Head]]]
"""Place and description of each copy of a rank's shard."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A version of which some node holds every shard. One rank looks for it on behalf of all."""

    step: int
    commit: str
    """The commit as a bucket would hold it, signed by the run's key."""
    lengths: Sequence[int]
    """Lengths of the manifests, by rank."""
    holders: Sequence[Sequence[int]]
    """Places that hold a rank's shard, by rank."""
    homes: Sequence[int]
    """Place of the process that staged a rank's shard, by rank; NOWHERE if it has left."""


def list_offers(
    places: PeerPlaces,
    *,
    above: int,
    start: int,
) -> list[Offer]:
    """Lists versions of which every rank's shard is in memory, the newest first, one for each step.

    Ignores versions older than step `above`, and those of trainers before start number `start`. A
    version may be of another number of ranks than this start has.
    """
    shards_by_version: defaultdict[_VersionOfStart, _ShardsByRank] = defaultdict(dict)
    for place, shards in places.list_heads().items():
        for shard in shards:
            if shard["step"] < above or shard["start"] < start:
                continue
            version = (shard["step"], shard["start"], shard["attempt"], shard["world_size"])
            shards_by_rank = shards_by_version[version]
            shards_by_rank.setdefault(shard["rank"], []).append((place, shard))
    offers: dict[int, Offer] = {}
    for version in sorted(shards_by_version, reverse=True):
        step, _, attempt, world_size = version
        shards_by_rank = shards_by_version[version]
        is_whole = len(shards_by_rank) == world_size
        if is_whole and step not in offers and _copies_agree(shards_by_rank):
            copies_in_order = [shards_by_rank[rank] for rank in range(world_size)]
            offers[step] = _make_offer(places.run, (step, attempt), copies_in_order)
    return list(offers.values())[:MOST_OFFERS]


def _copies_agree(shards_by_rank: _ShardsByRank) -> bool:
    """Tells whether all copies of a shard are equal. If two differ under one name, one of them is
    wrong, and nothing shows which.
    """
    for copies in shards_by_rank.values():
        digests = {shard["sha256"] for _, shard in copies}
        if len(digests) > 1:
            return False
    return True


def _make_offer(
    run: str,
    version: Version,
    copies_by_rank: list[list[tuple[int, Head]]],
) -> Offer:
    shards: list[Head] = []
    holders: list[tuple[int, ...]] = []
    homes: list[int] = []
    for copies in copies_by_rank:
        _, shard = copies[0]
        shards.append(shard)
        # Each place once, in order.
        places = dict.fromkeys(place for place, _ in copies)
        holders.append(tuple(places))
        staged_at = [place for place, shard in copies if shard["memory"] >= 0]
        homes.append(staged_at[0] if staged_at else NOWHERE)
    lengths = tuple(shard["length"] for shard in shards)
    manifests = tuple(
        ManifestDigest(length=shard["length"], sha256=shard["sha256"]) for shard in shards
    )
    commit = Commit(
        run=run,
        step=version[0],
        attempt=version[1],
        world_size=len(shards),
        total_bytes=sum(shard["bytes"] for shard in shards),
        created=int(time.time()),
        manifests=manifests,
        epoch=shards[0]["start"],
    )
    return Offer(
        step=version[0],
        commit=commit.encode().decode(),
        lengths=lengths,
        holders=tuple(holders),
        homes=tuple(homes),
    )


class PeerStorage:
    """Reads offered versions from keepers, and from this rank's own staging memory."""

    read_bytes = 8 << 20
    """Smaller than a shard: a buffer for a shard that spans tensors takes longer to touch than to
    fill.
    """

    def __init__(
        self,
        places: PeerPlaces,
        offers: Sequence[Offer],
        rank: int,
        *,
        copies_first: bool,
    ) -> None:
        """`rank`: rank of this process; -1: it is no rank. `copies_first`: read a shard from the
        neighbor before the node whose rank staged it, and on that node from its folder first.
        """
        self._places = places
        self._rank = rank
        self._copies_first = copies_first
        self._offers: dict[str, Offer] = {}
        """Offers by the name of their commit object."""
        for offer in offers:
            name = object_names.commit_object(places.run, offer.step)
            self._offers[name] = offer
        self._manifests: dict[str, bytes] = {}
        self._staged: dict[str, memoryview] = {}
        """Shards that this rank staged, which it reads without its keeper."""
        self._mapping = threading.Lock()

    def put(
        self,
        name: str,
        data: memoryview,
        crc32c: str,
    ) -> None:
        raise Denied("copies in memory are handed over by uploaders")

    def delete(self, name: str) -> None:
        raise Denied("copies in memory are deleted by their keepers")

    def move(
        self,
        source: str,
        target: str,
        *,
        replace: bool = False,
    ) -> None:
        raise Denied("copies in memory keep their names")

    def read_into(
        self,
        name: str,
        start: int,
        into: memoryview,
    ) -> None:
        """Fills `into`. Raises Damaged if no place returns the bytes that it offered."""
        end = start + len(into)
        if name in self._offers:
            commit = self._offers[name].commit.encode()
            into[:] = commit[start:end]
            return
        offer, rank = self._locate(name)
        question = {
            "op": "read",
            "name": name,
            "from": start,
            "bytes": len(into),
            "copies_first": self._copies_first,
        }
        reason = "no place has it"
        for place in self._order_holders(offer, rank):
            if self._is_local(name, offer, rank, place):
                data = self._map_local_shard(name, offer, rank)
                if data:
                    # Not over the keeper's socket, which takes as much CPU as all else together.
                    source = torch.frombuffer(data[start:end], dtype=torch.uint8)
                    target = torch.frombuffer(into, dtype=torch.uint8)
                    target.copy_(source)
                    return
            try:
                ask(
                    self._places.sources[place],
                    self._places.key,
                    question,
                    into=into,
                )
            except NotFound as error:
                reason = str(error)
                continue
            if name.endswith(".json"):
                self._manifests[name] = bytes(into)
            return
        raise Damaged(f"{name}: {reason}")

    def list(self, prefix: str) -> Iterator[Stat]:
        for name in self._offers:
            if name.startswith(f"{prefix}/"):
                yield self.stat(name)
        # Called after the manifests were compared with the commit; shards are compared when they
        # are read.
        for name, payload in self._manifests.items():
            if name.startswith(f"{prefix}/"):
                manifest = parse_manifest(payload)
                for index, shard in enumerate(manifest.shards):
                    yield Stat(
                        name=manifest.shard_name(index),
                        bytes=shard.bytes,
                        modified=0.0,
                    )

    def stat(self, name: str) -> Stat:
        if name in self._offers:
            length = len(self._offers[name].commit.encode())
        else:
            offer, rank = self._locate(name)
            length = offer.lengths[rank]
        return Stat(name=name, bytes=length, modified=0.0)

    def _order_holders(self, offer: Offer, rank: int) -> Sequence[int]:
        home = offer.homes[rank]

        def comes_last(place: int) -> bool:
            return (place == home) == self._copies_first

        return sorted(offer.holders[rank], key=comes_last)

    def _is_local(
        self,
        name: str,
        offer: Offer,
        rank: int,
        place: int,
    ) -> bool:
        """Tells whether this process staged the shard of `rank`, as that rank or as another one."""
        size = self._places.ranks_per_node
        # A memory that failed its checks has a copy in the folder.
        if self._copies_first and self._places.spools:
            return False
        is_own = self._rank >= 0 and rank % size == self._rank % size
        return (
            is_own
            and place == self._places.place
            and place == offer.homes[rank]
            and name.endswith(".bin")
        )

    def _map_local_shard(
        self,
        name: str,
        offer: Offer,
        rank: int,
    ) -> memoryview | None:
        """Maps a shard of this process's staging memory; None: the memory no longer holds it."""
        with self._mapping:
            if name in self._staged:
                return self._staged[name]
            attempt = name.rsplit("/", 2)[1]
            version = (offer.step, attempt)
            manifest_name = object_names.manifest_object(
                self._places.run,
                offer.step,
                attempt,
                rank,
            )
            payload = self._manifests.get(manifest_name)
            memory = self._places.find_memory(self._rank, version)
            if payload is None or memory < 0:
                return None
            manifest = parse_manifest(payload)
            descriptor = self._places.memories[memory]
            size = os.fstat(descriptor).st_size
            if size < manifest.length:
                return None
            view = memoryview(b"")
            if size:
                view = memoryview(mmap.mmap(descriptor, size))
            for index, stretch in enumerate(manifest.stretches()):
                self._staged[manifest.shard_name(index)] = view[stretch]
            return self._staged[name]

    def _locate(self, name: str) -> tuple[Offer, int]:
        """Returns the offer and the rank that a shard or manifest belongs to. Raises NotFound."""
        step_prefix = name.rsplit("/", 2)[0]
        offer = self._offers.get(f"{step_prefix}/{object_names.COMMIT_OBJECT}")
        match = _RANK.search(name)
        if offer and match:
            rank = int(match[1])
            if rank < len(offer.holders):
                return offer, rank
        raise NotFound(f"{name} is not in memory")
