"""A step that nodes hold in memory, read as if it were in a bucket: the restore then verifies it in
the same way.
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
from holdfast.checkpoint.peers.places import PeerPlaces, Version
from holdfast.checkpoint.peers.wire import Head, ask
from holdfast.checkpoint.stores.storage import Stat
from holdfast.support import object_names

MOST_OFFERS = 4
"""Of each rank a node has no more versions that are complete."""
_RANK = re.compile(r"/rank-(\d{5})[.-]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A version of which every shard is in some memory, as one rank found it for all."""

    step: int
    commit: str
    """As a bucket would hold it, signed by the run's key."""
    lengths: Sequence[int]
    """Of the manifests, by rank."""
    holders: Sequence[Sequence[int]]
    """By rank the places that have its shard."""


def whole_offers(
    places: PeerPlaces,
    world_size: int,
    *,
    above: int,
    start: int,
) -> list[Offer]:
    """Versions of which all ranks have a copy, the newest first, one for each step; not older than
    step `above`, by trainers that did not begin before number `start`.
    """
    by_version: defaultdict[tuple[int, int, str], dict[int, list[tuple[int, Head]]]] = defaultdict(
        dict
    )
    for place, held in places.held().items():
        for one in held:
            if one["world_size"] == world_size and one["step"] >= above and one["start"] >= start:
                by_version[one["step"], one["start"], one["attempt"]].setdefault(
                    one["rank"], []
                ).append((place, one))
    found: dict[int, Offer] = {}
    for step, start_of, attempt in sorted(by_version, reverse=True):
        ranks = by_version[step, start_of, attempt]
        # Two that differ under one name: one of them is wrong, and nothing shows which.
        alike = all(len({one["sha256"] for _, one in found}) == 1 for found in ranks.values())
        if len(ranks) == world_size and alike and step not in found:
            found[step] = _offered(
                places.run, (step, attempt), [ranks[rank] for rank in range(world_size)]
            )
    return [*found.values()][:MOST_OFFERS]


def _offered(run: str, version: Version, by_rank: list[list[tuple[int, Head]]]) -> Offer:
    first = [found[0][1] for found in by_rank]
    commit = Commit(
        run=run,
        step=version[0],
        attempt=version[1],
        world_size=len(by_rank),
        total_bytes=sum(one["bytes"] for one in first),
        created=int(time.time()),
        manifests=tuple(
            ManifestDigest(length=one["length"], sha256=one["sha256"]) for one in first
        ),
        epoch=first[0]["start"],
    )
    return Offer(
        step=version[0],
        commit=commit.encode().decode(),
        lengths=tuple(one["length"] for one in first),
        holders=tuple(tuple(dict.fromkeys(place for place, _ in found)) for found in by_rank),
    )


class PeerStorage:
    """Reads only."""

    read_bytes = 8 << 20
    """Not a whole shard: memory for one that spans tensors takes longer to touch than to fill."""

    def __init__(
        self,
        places: PeerPlaces,
        offers: Sequence[Offer],
        rank: int,
        *,
        copies_first: bool,
    ) -> None:
        """`rank`: of this process. `copies_first`: a shard is read from the neighbour, and only
        then from the node whose rank staged it.
        """
        self._places = places
        self._rank = rank
        self._copies_first = copies_first
        self._offers = {
            object_names.commit_object(places.run, offer.step): offer for offer in offers
        }
        self._manifests: dict[str, bytes] = {}
        self._mine: dict[str, memoryview] = {}
        """Shards that this rank staged, which it reads without its keeper."""
        self._mapping = threading.Lock()

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        raise Denied("copies in memory are handed over by uploaders")

    def delete(self, name: str) -> None:
        raise Denied("copies in memory are given up by their keepers")

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        """Raises Damaged where no place gives what one has offered."""
        if name in self._offers:
            into[:] = self._offers[name].commit.encode()[start : start + len(into)]
            return
        offer, rank = self._of(name)
        why = "no place has it"
        home = rank // self._places.ranks_per_node
        for place in sorted(
            offer.holders[rank], key=lambda place: (place == home) == self._copies_first
        ):
            if (
                rank == self._rank
                and place == home
                and name.endswith(".bin")
                and (own := self._staged(name, offer))
            ):
                # Not over the keeper's socket, which takes the processors as long as all else.
                target = torch.frombuffer(into, dtype=torch.uint8)
                target.copy_(torch.frombuffer(own[start : start + len(into)], dtype=torch.uint8))
                return
            question = {
                "op": "read",
                "name": name,
                "from": start,
                "bytes": len(into),
            }
            try:
                ask(self._places.keepers[place], self._places.key, question, into=into)
            except NotFound as error:
                why = str(error)
                continue
            if name.endswith(".json"):
                self._manifests[name] = bytes(into)
            return
        raise Damaged(f"{name}: {why}")

    def list(self, prefix: str) -> Iterator[Stat]:
        for name, offer in self._offers.items():
            if name.startswith(f"{prefix}/"):
                yield Stat(
                    name=name,
                    bytes=len(offer.commit.encode()),
                    modified=0.0,
                )
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
            return Stat(
                name=name,
                bytes=len(self._offers[name].commit.encode()),
                modified=0.0,
            )
        offer, rank = self._of(name)
        return Stat(name=name, bytes=offer.lengths[rank], modified=0.0)

    def _staged(self, name: str, offer: Offer) -> memoryview | None:
        """A shard that this rank has staged, and its memory still holds."""
        with self._mapping:
            if name not in self._mine:
                attempt = name.rsplit("/", 2)[1]
                described = self._manifests.get(
                    object_names.manifest_object(self._places.run, offer.step, attempt, self._rank)
                )
                memory = self._places.memory_of(self._rank, (offer.step, attempt))
                if described is None or memory < 0:
                    return None
                manifest = parse_manifest(described)
                descriptor = self._places.memories[memory]
                size = os.fstat(descriptor).st_size
                if size < manifest.length:
                    return None
                view = memoryview(mmap.mmap(descriptor, size)) if size else memoryview(b"")
                for index, stretch in enumerate(manifest.stretches()):
                    self._mine[manifest.shard_name(index)] = view[stretch]
            return self._mine[name]

    def _of(self, name: str) -> tuple[Offer, int]:
        """Of a shard or a manifest: its version and its rank."""
        offer = self._offers.get(f"{name.rsplit('/', 2)[0]}/{object_names.COMMIT_OBJECT}")
        found = _RANK.search(name)
        if not offer or not found or int(found[1]) >= len(offer.holders):
            raise NotFound(f"{name} is not in memory")
        return offer, int(found[1])
