"""A step that nodes hold in memory, read as if it were in a bucket: the restore then verifies it in the same way."""

import re
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Self

from holdfast.checkpoint.errors import Denied, NotFound
from holdfast.checkpoint.format import Commit, ManifestDigest
from holdfast.checkpoint.format.decoding import parse_manifest
from holdfast.checkpoint.peers.places import PeerPlaces, Version
from holdfast.checkpoint.peers.wire import Head, Question
from holdfast.checkpoint.stores.storage import Stat
from holdfast.contract import object_names

_RANK = re.compile(r"/rank-(\d{5})[.-]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A version of which every shard is in some memory, as one rank found it for all."""

    step: int
    commit: str
    """As a bucket would hold it, signed by the run's key."""
    lengths: tuple[int, ...]
    """Of the manifests, by rank."""
    holders: tuple[tuple[int, ...], ...]
    """By rank the places that have its shard."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Self:
        return cls(step=body["step"], commit=body["commit"], lengths=tuple(body["lengths"]),
                   holders=tuple(map(tuple, body["holders"])))  # fmt: skip


def newest_offer(places: PeerPlaces, world_size: int, *, above: int, start: int) -> Offer | None:
    """The newest version of which all ranks have a copy, not older than step `above`, by a trainer that did not begin
    before number `start`."""
    by_version: defaultdict[Version, dict[int, list[tuple[int, Head]]]] = defaultdict(dict)
    for place, held in places.held().items():
        for one in held:
            if one["world_size"] == world_size and one["step"] >= above and one["start"] >= start:
                by_version[one["step"], one["attempt"]].setdefault(one["rank"], []).append((place, one))
    for version in sorted(by_version, reverse=True):
        ranks = by_version[version]
        # Two that differ under one name: one of them lies, and nothing says which.
        alike = all(len({one["sha256"] for _, one in found}) == 1 for found in ranks.values())
        if len(ranks) == world_size and alike:
            return _offered(places.run, version, [ranks[rank] for rank in range(world_size)])
    return None


def _offered(run: str, version: Version, by_rank: list[list[tuple[int, Head]]]) -> Offer:
    first = [found[0][1] for found in by_rank]
    commit = Commit(
        run=run,
        step=version[0],
        attempt=version[1],
        world_size=len(by_rank),
        total_bytes=sum(one["bytes"] for one in first),
        created=int(time.time()),
        manifests=tuple(ManifestDigest(length=one["length"], sha256=one["sha256"]) for one in first),
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

    read_bytes = 1 << 30
    create_only = True

    def __init__(self, places: PeerPlaces, offer: Offer) -> None:
        self._places, self._offer = places, offer
        self._commit_name = object_names.commit_object(places.run, offer.step)
        self._commit = offer.commit.encode()
        self._manifests: dict[str, bytes] = {}

    def put(self, name: str, data: memoryview, crc32c: str) -> None:
        raise Denied("copies in memory are handed over by uploaders")

    def delete(self, name: str) -> None:
        raise Denied("copies in memory are given up by their keepers")

    def read_into(self, name: str, start: int, into: memoryview) -> None:
        if name == self._commit_name:
            into[:] = self._commit[start : start + len(into)]
            return
        rank = self._rank_of(name)
        why = "no place has it"
        # The own node first: that way costs no network.
        for place in sorted(self._offer.holders[rank], key=lambda place: place != self._places.place):
            question = {"op": "read", "name": name, "from": start, "bytes": len(into)}
            try:
                found = Question(self._places.keepers[place], self._places.key, question)
                try:
                    found.read_into(into)
                finally:
                    found.close()
            except NotFound as error:
                why = str(error)
                continue
            if name.endswith(".json"):
                self._manifests[name] = bytes(into)
            return
        raise NotFound(f"{name}: {why}")

    def list(self, prefix: str) -> Iterator[Stat]:
        if self._commit_name.startswith(f"{prefix}/"):
            yield Stat(name=self._commit_name, bytes=len(self._commit), modified=0.0)
        # Asked once the manifests are compared with the commit; their shards are when their bytes are read.
        for name, payload in self._manifests.items():
            if name.startswith(f"{prefix}/"):
                manifest = parse_manifest(payload)
                for index, shard in enumerate(manifest.shards):
                    yield Stat(name=manifest.shard_name(index), bytes=shard.bytes, modified=0.0)

    def stat(self, name: str) -> Stat:
        length = len(self._commit) if name == self._commit_name else self._offer.lengths[self._rank_of(name)]
        return Stat(name=name, bytes=length, modified=0.0)

    def _rank_of(self, name: str) -> int:
        found = _RANK.search(name)
        if not found or int(found[1]) >= len(self._offer.holders):
            raise NotFound(f"{name} is not in memory")
        return int(found[1])
