"""The keeper of a node's memory: what it takes, what it refuses, and what is read back from it."""

import os
import signal
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.errors import NotFound
from holdfast.checkpoint.format import Manifest, Shard, hex_digest
from holdfast.checkpoint.peers import keeper as keeping
from holdfast.checkpoint.peers import storage as storage_room
from holdfast.checkpoint.peers import wire
from holdfast.checkpoint.peers.keeper import Keeper
from holdfast.checkpoint.peers.places import PeerPlaces, neighbour_of
from holdfast.checkpoint.peers.storage import Offer, PeerStorage, whole_offers
from holdfast.checkpoint.restore.reading import open_step
from holdfast.checkpoint.stores.storage import crc32c
from holdfast.vocabulary.environment import ENV_KEY_FILE

RUN = "job"
START = 3
NONE = (-1, "")


class Pair:
    """Two nodes of one rank each."""

    def __init__(self) -> None:
        self.descriptors = [[os.memfd_create("memory") for _ in range(3)] for _ in range(2)]
        self.keepers = [Keeper(RUN, [own]) for own in self.descriptors]
        at = tuple(("127.0.0.1", keeper.port) for keeper in self.keepers)
        self.places = [
            PeerPlaces(
                run=RUN,
                epoch=1,
                place=place,
                keepers=at,
                ranks_per_node=1,
                memories=tuple(own),
            )
            for place, own in enumerate(self.descriptors)
        ]
        for keeper in self.keepers:
            keeper.epoch = 1

    def own(self, manifest: Manifest, data: bytes, memory: int = 0) -> None:
        os.pwrite(self.descriptors[manifest.rank][memory], data, 0)
        self.places[manifest.rank].own(manifest, memory, START)

    def copy(self, manifest: Manifest, data: bytes, keep: tuple[int, str] = NONE) -> None:
        self.places[manifest.rank].copy(manifest, memoryview(bytearray(data)), keep, START)

    def offer(self, *, above: int = 0, start: int = 0) -> Offer | None:
        return next(iter(whole_offers(self.places[0], 2, above=above, start=start)), None)


@pytest.fixture
def pair() -> Pair:
    return Pair()


def shard(
    rank: int,
    step: int,
    data: bytes = b"abcd" * 4,
    attempt: str = "a1b2c3d4e5f6",
) -> tuple[Manifest, bytes]:
    described = Shard(bytes=len(data), crc32c=crc32c(memoryview(bytearray(data))))
    manifest = Manifest(
        run=RUN,
        step=step,
        attempt=attempt,
        rank=rank,
        world_size=2,
        shards=(described,),
        tensors=(),
        values={},
    )
    return manifest, data


def test_a_version_counts_when_every_shard_has_a_copy(pair: Pair) -> None:
    pair.copy(*shard(0, 5))
    assert pair.offer() is None, "rank 1 has none"
    pair.own(*shard(1, 5))
    offer = pair.offer()
    assert offer
    assert (offer.step, offer.holders) == (5, ((1,), (1,)))
    assert pair.offer(above=6) is None, "the bucket is newer"
    assert pair.offer(start=START + 1) is None, "another trainer has committed since"
    storage = PeerStorage(pair.places[0], [offer], 0, copies_first=False)
    opened = open_step(storage, RUN, 5)
    found = bytearray(16)
    storage.read_into(opened.manifests[0].shard_name(0), 0, memoryview(found))
    assert bytes(found) == b"abcd" * 4


@pytest.mark.parametrize("copies_first", [False, True])
def test_a_rank_reads_its_own_memory_without_its_keeper(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, copies_first: bool
) -> None:
    for rank in (0, 1):
        pair.own(*shard(rank, 5, b"own!" * 4), memory=2)
        pair.copy(*shard(rank, 5, b"own!" * 4))
    offer = pair.offer()
    assert offer
    asked: list[object] = []
    monkeypatch.setattr(
        storage_room,
        "ask",
        lambda *about, into: asked.append(about[2]) or wire.ask(*about, into=into),
    )
    storage = PeerStorage(pair.places[1], [offer], 1, copies_first=copies_first)
    opened = open_step(storage, RUN, 5)
    asked.clear()
    found = bytearray(8)
    storage.read_into(opened.manifests[1].shard_name(0), 4, memoryview(found))
    assert bytes(found) == b"own!" * 2
    assert len(asked) == copies_first
    storage.read_into(opened.manifests[0].shard_name(0), 4, memoryview(found))
    assert len(asked) == copies_first + 1, "another rank's is not in this process"


def test_a_rank_that_writes_nothing_is_part_of_a_version(pair: Pair) -> None:
    """As of a replica group whose other replica writes all tensors."""
    empty = replace(shard(1, 5)[0], shards=())
    pair.own(empty, b"")
    pair.copy(empty, b"")
    pair.copy(*shard(0, 5))
    offer = pair.offer()
    assert offer
    assert offer.holders == ((1,), (0, 1))


def test_what_does_not_fit_together_is_no_version(pair: Pair) -> None:
    manifest, data = shard(0, 5)
    pair.copy(manifest, data)
    pair.own(*shard(1, 5, attempt="ffffffffffff"))
    assert pair.offer() is None, "two attempts of a step"
    pair.own(*shard(1, 5))
    assert pair.offer()
    pair.own(replace(manifest, values={"other": 1}), data)
    assert pair.offer() is None, "two nodes tell different things of one shard"


def test_one_complete_copy_stays_while_another_arrives(pair: Pair) -> None:
    kept = shard(0, 5)
    pair.copy(*kept)
    for step in (6, 7, 8):
        pair.copy(*shard(0, step), keep=(5, kept[0].attempt))
    held = [one["step"] for one in pair.places[0].held()[1]]
    assert sorted(held) == [5, 8]


def test_a_former_neighbours_copies_stay_until_the_next_version_is_whole(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replacement in another zone changes whose copies a node keeps: memory for both would be too
    much.
    """
    room: list[int] = []
    monkeypatch.setattr(keeping, "check_room", lambda rank, length, count: room.append(count))
    former = pair.places[0]
    keeper = replace(pair.places[1], place=0)
    attempt = shard(0, 5)[0].attempt
    pair.copy(*shard(0, 5))
    pair.copy(*shard(0, 6), keep=(5, attempt))
    held = lambda: sorted((one["rank"], one["step"]) for one in former.held()[1])  # noqa: E731
    for step, keep, left in ((7, 6, [(0, 6), (1, 7)]), (8, 7, [(1, 7), (1, 8)])):
        found, data = shard(1, step)
        keeper.copy(found, memoryview(bytearray(data)), (keep, attempt), START)
        assert held() == left
    assert room == [2, 1, 1, 1], "never more than two shards at a time"


def test_a_keeper_refuses_a_copy_with_the_reason(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, data = shard(0, 5)
    monkeypatch.setattr(keeping, "free_bytes", lambda: 20)
    with pytest.raises(NotFound, match=r"rank 0 needs 2 copies of 0 MB, 0 MB, and 0 MB are free"):
        pair.copy(manifest, data)
    monkeypatch.setattr(keeping, "free_bytes", lambda: 32)
    with pytest.raises(NotFound, match="not those that were sent"):
        pair.copy(manifest, data[:-1] + b"x")
    pair.keepers[1].epoch = 2
    with pytest.raises(NotFound, match="this node is in epoch 2"):
        pair.copy(manifest, data)
    assert not pair.places[0].held()[1]
    pair.keepers[1].epoch = 1
    pair.copy(manifest, data)
    with pytest.raises(NotFound, match="there already"):
        pair.copy(manifest, data)


def test_a_stranger_reads_nothing_and_a_cut_off_copy_counts_for_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("k" * 64)
    monkeypatch.setenv(ENV_KEY_FILE, str(tmp_path / "key"))
    with pytest.raises(NotFound):
        wire.ask(pair.places[0].keepers[1], pair.places[0].key, {"op": "have"})
    monkeypatch.delenv(ENV_KEY_FILE)
    manifest, data = shard(0, 5)
    payload = manifest.encode()
    with socket.create_connection(pair.places[0].keepers[1], 5) as half:
        about = {
            "rank": 0,
            "length": len(payload),
            "sha256": hex_digest(payload),
            "bytes": manifest.length,
        }
        about |= {"step": 5, "attempt": manifest.attempt}
        head = {
            "op": "copy",
            "keep": list(NONE),
            "start": START,
            "epoch": 1,
            "nonce": "00",
            **about,
        }
        wire.send_head(half, pair.places[0].key, b"ask", wire.receive(half, 32), head)
        assert wire.receive_head(half, pair.places[0].key, b"answer", b"\0") == {}
        half.sendall(payload + data[:-1])
    assert not pair.places[0].held()[1]
    pair.copy(manifest, data)


def test_only_its_own_node_names_processes_to_end_and_memory_to_offer(pair: Pair) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        address = pair.places[0].keepers[1]
        key = pair.places[0].key
        with socket.create_connection(address, 5, source_address=("127.0.0.2", 0)) as other:
            head = {
                "op": "hello",
                "pid": process.pid,
                "epoch": 1,
                "nonce": "00",
            }
            wire.send_head(other, key, b"ask", wire.receive(other, 32), head)
            assert not other.recv(1)
        pair.keepers[1].end_uploaders()
        assert process.poll() is None
        pair.keepers[1].epoch = 2
        replace(pair.places[1], epoch=2).hello(process.pid)
        pair.keepers[1].end_uploaders()
        assert process.wait() == -signal.SIGKILL


def test_an_uploader_of_ranks_that_were_ended_comes_too_late(pair: Pair) -> None:
    pair.keepers[1].end_uploaders()
    with pytest.raises(NotFound, match="its ranks were ended"):
        pair.places[1].hello(os.getpid())
    pair.keepers[1].epoch = 2
    with pytest.raises(NotFound, match="this node is in epoch 2"):
        pair.places[1].hello(os.getpid())
    replace(pair.places[1], epoch=2).hello(os.getpid())


def test_the_answer_to_a_copy_is_how_long_the_processors_of_the_neighbour_took_it(
    pair: Pair,
) -> None:
    manifest, data = shard(0, 5, b"x" * (32 << 20))
    assert 0 < pair.places[0].copy(manifest, memoryview(bytearray(data)), NONE, START) < 30


@given(st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=2, max_size=12))
def test_each_place_keeps_the_copies_of_one_other_in_another_zone_where_possible(
    zones: list[str],
) -> None:
    places = range(len(zones))
    found = [neighbour_of(place, zones) for place in places]
    assert sorted(found) == [*places] and all(found[place] != place for place in places)
    alike = sum(zones[place] == zones[found[place]] for place in places)
    assert alike == max(0, 2 * max(map(zones.count, zones)) - len(zones)), (
        "no other choice has fewer"
    )


def test_the_largest_level_decides_in_which_domains_differ_and_else_the_place() -> None:
    assert [neighbour_of(place, [""] * 4) for place in range(4)] == [1, 2, 3, 0]
    racks = ["z/r1", "z/r1", "z/r2", "z/r2"]
    assert [neighbour_of(place, racks) for place in range(4)] == [2, 3, 0, 1]
    zones = ["y/r1", "y/r2", "z/r3", "z/r4"]
    assert [neighbour_of(place, zones) for place in range(4)] == [2, 3, 0, 1]
