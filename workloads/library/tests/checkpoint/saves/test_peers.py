"""The keeper of a node's memory: copies that it takes or refuses, and what is read back from it."""

import errno
import os
import signal
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.errors import Fenced, NotFound
from holdfast.checkpoint.format import Manifest, Shard, fence, hex_digest
from holdfast.checkpoint.format.commit import committed_steps, read_commit
from holdfast.checkpoint.memory_commits import store_newest
from holdfast.checkpoint.peers import memory_keeper, protocol, rooms
from holdfast.checkpoint.peers import storage as peer_storage
from holdfast.checkpoint.peers.keeper_client import PeerPlaces, find_neighbor
from holdfast.checkpoint.peers.memory_keeper import Keeper
from holdfast.checkpoint.peers.protocol import Address, Head
from holdfast.checkpoint.peers.storage import Offer, PeerStorage, list_offers
from holdfast.checkpoint.restore.reader import open_step
from holdfast.checkpoint.stores.local import LocalStorage
from holdfast.checkpoint.stores.storage import crc32c
from holdfast.support.errors import InputError
from holdfast.vocabulary.environment import ENV_KEY_FILE

RUN = "job"
START = 3
NONE = (-1, "")


class Pair:
    """Two nodes of one rank each, which keep copies in memory or in a folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.descriptors = []
        for _ in range(2):
            self.descriptors.append([os.memfd_create("memory") for _ in range(3)])
        self.keepers = []
        for memories in self.descriptors:
            self.keepers.append(Keeper(RUN, [memories], folder))
        addresses = tuple(("127.0.0.1", keeper.port) for keeper in self.keepers)
        self.places: list[PeerPlaces] = []
        for place, memories in enumerate(self.descriptors):
            self.places.append(
                PeerPlaces(
                    run=RUN,
                    epoch=1,
                    place=place,
                    keepers=addresses,
                    ranks_per_node=1,
                    memories=tuple(memories),
                    folder_bytes=1 << 30 if folder else -1,
                )
            )
        for keeper in self.keepers:
            keeper.epoch = 1

    def stage(
        self,
        manifest: Manifest,
        data: bytes,
        memory: int = 0,
    ) -> None:
        os.pwrite(self.descriptors[manifest.rank][memory], data, 0)
        self.places[manifest.rank].announce_shard(manifest, memory, START)

    def copy(
        self,
        manifest: Manifest,
        data: bytes,
        keep: tuple[int, str] = NONE,
    ) -> None:
        self.places[manifest.rank].copy(
            manifest,
            memoryview(bytearray(data)),
            keep,
            START,
        )

    def list_copied_steps(self) -> list[int]:
        """Lists the steps of the copies that the second node holds."""
        return sorted(shard["step"] for shard in self.places[0].list_heads()[1])

    def offer(self, *, above: int = 0, start: int = 0) -> Offer | None:
        return next(
            iter(
                list_offers(
                    self.places[0],
                    above=above,
                    start=start,
                )
            ),
            None,
        )


@pytest.fixture(params=["memory", "disk"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    return Pair(tmp_path if request.param == "disk" else None)


def shard(
    rank: int,
    step: int,
    data: bytes = b"abcd" * 4,
    attempt: str = "a1b2c3d4e5f6",
) -> tuple[Manifest, bytes]:
    checksum = crc32c(memoryview(bytearray(data)))
    manifest = Manifest(
        run=RUN,
        step=step,
        attempt=attempt,
        rank=rank,
        world_size=2,
        shards=(Shard(bytes=len(data), crc32c=checksum),),
        tensors=(),
        values={},
    )
    return manifest, data


def test_a_version_counts_when_every_shard_has_a_copy(pair: Pair) -> None:
    pair.copy(*shard(0, 5))
    assert pair.offer() is None, "rank 1 has none"
    pair.stage(*shard(1, 5))
    offer = pair.offer()
    assert offer
    assert offer.step == 5
    assert offer.holders == ((1,), (1,))
    assert pair.offer(above=6) is None, "the bucket is newer"
    assert pair.offer(start=START + 1) is None, "another trainer has committed since"
    storage = PeerStorage(
        pair.places[0],
        [offer],
        0,
        copies_first=False,
    )
    opened = open_step(storage, RUN, 5)
    data = bytearray(16)
    storage.read_into(opened.manifests[0].shard_name(0), 0, memoryview(data))
    assert bytes(data) == b"abcd" * 4


@pytest.mark.parametrize("copies_first", [False, True])
def test_a_rank_reads_its_own_memory_without_its_keeper(
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    copies_first: bool,
) -> None:
    for rank in (0, 1):
        pair.stage(*shard(rank, 5, b"own!" * 4), memory=2)
        pair.copy(*shard(rank, 5, b"own!" * 4))
    offer = pair.offer()
    assert offer
    questions: list[object] = []

    def ask(
        address: Address,
        key: bytes,
        head: Head,
        *,
        into: memoryview,
    ) -> Head:
        questions.append(head)
        return protocol.ask(
            address,
            key,
            head,
            into=into,
        )

    monkeypatch.setattr(peer_storage, "ask", ask)
    storage = PeerStorage(
        pair.places[1],
        [offer],
        1,
        copies_first=copies_first,
    )
    opened = open_step(storage, RUN, 5)
    questions.clear()
    data = memoryview(bytearray(8))
    storage.read_into(opened.manifests[1].shard_name(0), 4, data)
    assert bytes(data) == b"own!" * 2
    assert len(questions) == copies_first
    storage.read_into(opened.manifests[0].shard_name(0), 4, data)
    assert len(questions) == copies_first + 1, "another rank's is not in this process"


def test_a_rank_that_writes_nothing_belongs_to_a_version(pair: Pair) -> None:
    """A rank writes nothing if another replica writes all tensors."""
    empty = replace(shard(1, 5)[0], shards=())
    pair.stage(empty, b"")
    pair.copy(empty, b"")
    pair.copy(*shard(0, 5))
    offer = pair.offer()
    assert offer
    assert offer.holders == ((1,), (0, 1))


def test_shards_that_do_not_fit_together_are_no_version(pair: Pair) -> None:
    manifest, data = shard(0, 5)
    pair.copy(manifest, data)
    pair.stage(*shard(1, 5, attempt="ffffffffffff"))
    assert pair.offer() is None, "two attempts of a step"
    pair.stage(*shard(1, 5))
    assert pair.offer()
    pair.stage(replace(manifest, values={"other": 1}), data)
    assert pair.offer() is None, "two nodes describe one shard differently"


def test_one_complete_copy_stays_while_another_arrives(pair: Pair) -> None:
    manifest, data = shard(0, 5)
    pair.copy(manifest, data)
    for step in (6, 7, 8):
        pair.copy(*shard(0, step), keep=(5, manifest.attempt))
    assert pair.list_copied_steps() == [5, 8]


def test_a_former_neighbors_copies_stay_until_a_version_is_whole(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replacement in another zone changes whose copies a node keeps. Memory for both would be too
    much.
    """
    counts: list[int] = []
    monkeypatch.setattr(
        memory_keeper, "check_room", lambda rank, length, count, free: counts.append(count)
    )
    former = pair.places[0]
    keeper = replace(pair.places[1], place=0)
    attempt = shard(0, 5)[0].attempt
    pair.copy(*shard(0, 5))
    pair.copy(*shard(0, 6), keep=(5, attempt))

    def list_copies() -> list[tuple[int, int]]:
        return sorted((copy["rank"], copy["step"]) for copy in former.list_heads()[1])

    for step, keep, copies in ((7, 6, [(0, 6), (1, 7)]), (8, 7, [(1, 7), (1, 8)])):
        manifest, data = shard(1, step)
        keeper.copy(
            manifest,
            memoryview(bytearray(data)),
            (keep, attempt),
            START,
        )
        assert list_copies() == copies
    assert counts == [2, 1, 1, 1], "never more than two shards at a time"


def test_an_own_shard_in_the_folder_outlives_its_staging_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fills and flushes the files several times."""
    monkeypatch.setattr(rooms, "_CHUNK_BYTES", 1 << 10)
    monkeypatch.setattr(rooms, "_FLUSH_BYTES", 5 << 10)
    pair = Pair(tmp_path)
    data = bytes(range(256)) * 37
    manifest, _ = shard(1, 5, data)
    pair.stage(manifest, data)
    assert pair.places[1].spool(manifest, 0, NONE, START) >= 0
    pair.copy(*shard(0, 5, data))
    os.pwrite(pair.descriptors[1][0], b"the next version", 0)
    offer = pair.offer()
    assert offer
    # A reader whose first try fails verification reads the copies instead.
    for copies_first in (True, False):
        storage = PeerStorage(
            pair.places[0],
            [offer],
            -1,
            copies_first=copies_first,
        )
        opened = open_step(storage, RUN, 5)
        for rank in range(2):
            content = bytearray(len(data))
            name = opened.manifests[rank].shard_name(0)
            storage.read_into(name, 0, memoryview(content))
            is_overwritten = rank == 1 and not copies_first
            assert bytes(content) == data or is_overwritten, rank
    bucket = LocalStorage.open(str(tmp_path / "bucket"))
    for _ in range(START):
        fence.take(bucket, RUN)
    assert store_newest(bucket, pair.places[0], 5.0) == 5
    for step, keep in ((6, 5), (7, 6), (8, 6)):
        newer, _ = shard(1, step, data)
        pair.stage(newer, data)
        pair.places[1].spool(newer, 0, (keep, newer.attempt), START)
    steps: set[int] = set()
    for shard_of_node in pair.places[0].list_heads()[1]:
        if shard_of_node["rank"] == 1:
            steps.add(shard_of_node["step"])
    assert steps == {6, 8}
    assert list(tmp_path.iterdir()) == [tmp_path / "bucket"], "a killed job leaves no files"


def test_shards_from_a_former_epoch_are_not_kept_in_the_folder(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    manifest, data = shard(1, 5)
    pair.stage(manifest, data)
    pair.keepers[1].epoch = 2
    with pytest.raises(NotFound, match="this node is in epoch 2"):
        pair.places[1].spool(manifest, 0, NONE, START)
    with pytest.raises(NotFound, match="no folder for copies"):
        Pair().places[1].spool(manifest, 0, NONE, START)


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("/dev/shm", "is in memory"),
        ("/nowhere/at/all", "cannot be written"),
    ],
)
def test_a_folder_that_is_none_or_in_memory_is_refused(folder: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rooms.check_folder(Path(folder))


def test_room_that_cannot_be_opened_raises_one_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        rooms.FileRoom(tmp_path / "gone", 16)


def test_files_that_the_kernel_may_drop_count_as_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that has read more than its limit, such as weights, has no other free memory."""
    contents = {
        "MEMORY_LIMIT": "1000",
        "MEMORY_USED": "990",
        "MEMORY_STAT": "anon 90\nfile 900\ninactive_file 600\nactive_file 300",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(f"{text}\n")
        monkeypatch.setattr(
            rooms,
            name,
            tmp_path / name,
            raising=False,
        )
    assert rooms.free_bytes() == 610
    (tmp_path / "MEMORY_STAT").unlink()
    assert rooms.free_bytes() == 10


@pytest.mark.parametrize("code", [errno.ECONNABORTED, errno.EMFILE])
def test_a_keeper_outlives_a_connection_that_it_cannot_accept(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    accept = socket.socket.accept
    failed: set[int] = set()

    def fail_first(listener: socket.socket) -> tuple[socket.socket, object]:
        if listener.fileno() not in failed:
            failed.add(listener.fileno())
            raise OSError(code, os.strerror(code))
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", fail_first)
    pair = Pair()
    manifest, data = shard(0, 5)
    pair.copy(manifest, data)
    assert len(failed) == 2
    assert pair.list_copied_steps() == [5]


def test_a_keeper_refuses_a_copy_with_the_reason(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, data = shard(0, 5)
    monkeypatch.setattr(memory_keeper, "free_bytes", lambda: 20)
    monkeypatch.setattr(memory_keeper, "free_disk_bytes", lambda folder: 20)
    with pytest.raises(NotFound, match=r"rank 0 needs 2 copies of 0 MB, 0 MB, and 0 MB are free"):
        pair.copy(manifest, data)
    monkeypatch.setattr(memory_keeper, "free_bytes", lambda: 32)
    monkeypatch.setattr(memory_keeper, "free_disk_bytes", lambda folder: 32)
    with pytest.raises(NotFound, match="not those that were sent"):
        pair.copy(manifest, data[:-1] + b"x")
    pair.keepers[1].epoch = 2
    with pytest.raises(NotFound, match="this node is in epoch 2"):
        pair.copy(manifest, data)
    assert not pair.places[0].list_heads()[1]
    pair.keepers[1].epoch = 1
    pair.copy(manifest, data)
    with pytest.raises(NotFound, match="there already"):
        pair.copy(manifest, data)


def test_a_stranger_reads_nothing_and_a_partial_copy_does_not_count(
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "key").write_text("k" * 64)
    monkeypatch.setenv(ENV_KEY_FILE, str(tmp_path / "key"))
    with pytest.raises(NotFound):
        neighbor = pair.places[0]
        protocol.ask(neighbor.keepers[1], neighbor.key, {"op": "have"})
    monkeypatch.delenv(ENV_KEY_FILE)
    manifest, data = shard(0, 5)
    payload = manifest.encode()
    with socket.create_connection(pair.places[0].keepers[1], 60) as half:
        head = {
            "op": "copy",
            "keep": list(NONE),
            "start": START,
            "epoch": 1,
            "nonce": "00",
            "rank": 0,
            "length": len(payload),
            "sha256": hex_digest(payload),
            "bytes": manifest.length,
            "step": 5,
            "attempt": manifest.attempt,
        }
        protocol.send_head(
            half,
            pair.places[0].key,
            b"ask",
            protocol.receive(half, 32),
            head,
        )
        assert (
            protocol.receive_head(
                half,
                pair.places[0].key,
                b"answer",
                b"\0",
            )
            == {}
        )
        half.sendall(payload + data[:-1])
    assert not pair.places[0].list_heads()[1]
    pair.copy(manifest, data)


def test_only_local_processes_register_uploaders(pair: Pair) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        address = pair.places[0].keepers[1]
        key = pair.places[0].key
        with socket.create_connection(address, 60, source_address=("127.0.0.2", 0)) as other:
            head = {
                "op": "hello",
                "pid": process.pid,
                "epoch": 1,
                "nonce": "00",
            }
            protocol.send_head(
                other,
                key,
                b"ask",
                protocol.receive(other, 32),
                head,
            )
            assert not other.recv(1)
        pair.keepers[1].end_uploaders()
        assert process.poll() is None
        pair.keepers[1].epoch = 2
        replace(pair.places[1], epoch=2).register_uploader(process.pid)
        pair.keepers[1].end_uploaders()
        assert process.wait() == -signal.SIGKILL


def test_an_uploader_whose_ranks_have_ended_is_refused(pair: Pair) -> None:
    pair.keepers[1].end_uploaders()
    with pytest.raises(NotFound, match="the ranks of this epoch have ended"):
        pair.places[1].register_uploader(os.getpid())
    pair.keepers[1].epoch = 2
    with pytest.raises(NotFound, match="this node is in epoch 2"):
        pair.places[1].register_uploader(os.getpid())
    replace(pair.places[1], epoch=2).register_uploader(os.getpid())


def test_a_copy_returns_the_neighbors_cpu_time(pair: Pair) -> None:
    manifest, data = shard(0, 5, b"x" * (32 << 20))
    receiving_s = pair.places[0].copy(
        manifest,
        memoryview(bytearray(data)),
        NONE,
        START,
    )
    assert 0 < receiving_s < 30


@given(st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=2, max_size=12))
def test_neighbors_are_in_another_zone_if_possible(zones: list[str]) -> None:
    neighbors = find_neighbors(zones)
    assert sorted(neighbors) == [*range(len(zones))]
    in_one_zone = 0
    for place, neighbor in enumerate(neighbors):
        assert neighbor != place
        in_one_zone += zones[place] == zones[neighbor]
    largest_zone = max(map(zones.count, zones))
    assert in_one_zone == max(0, 2 * largest_zone - len(zones)), "no other choice has fewer"


def find_neighbors(domains: list[str]) -> list[int]:
    return [find_neighbor(place, domains) for place in range(len(domains))]


def test_the_widest_level_at_which_domains_differ_decides() -> None:
    assert find_neighbors([""] * 4) == [1, 2, 3, 0]
    assert find_neighbors(["z/r1", "z/r1", "z/r2", "z/r2"]) == [2, 3, 0, 1]
    assert find_neighbors(["y/r1", "y/r2", "z/r3", "z/r4"]) == [2, 3, 0, 1]


def test_fewer_nodes_get_a_version_that_more_have_staged(pair: Pair) -> None:
    for rank in (0, 1):
        pair.stage(*shard(rank, 5))
        pair.copy(*shard(rank, 5))
    # The first node is lost; the second one is alone, and rank 0 of the next size.
    remaining = replace(pair.places[1], place=0, keepers=pair.places[1].keepers[1:])
    (offer,) = list_offers(remaining, above=0, start=0)
    assert offer.holders == ((0,), (0,))
    assert offer.homes == (-1, 0)
    assert remaining.find_memory(0, (5, "a1b2c3d4e5f6")) == 0
    storage = PeerStorage(remaining, [offer], 0, copies_first=False)
    opened = open_step(storage, RUN, 5)
    assert len(opened.manifests) == 2
    for manifest in opened.manifests:
        data = memoryview(bytearray(16))
        storage.read_into(manifest.shard_name(0), 0, data)
        assert bytes(data) == b"abcd" * 4


def test_a_memory_holds_one_shard_whatever_rank_staged_it(pair: Pair) -> None:
    pair.stage(*shard(1, 5))
    manifest, data = shard(0, 6)
    os.pwrite(pair.descriptors[1][0], data, 0)
    pair.places[1].announce_shard(manifest, 0, START)
    (entry,) = pair.places[0].list_heads()[1]
    assert entry["rank"] == 0
    assert entry["step"] == 6
    assert entry["local"] == 0


def test_single_node_sends_no_copies(pair: Pair) -> None:
    alone = replace(pair.places[0], keepers=pair.places[0].keepers[:1])
    manifest, data = shard(0, 5)
    assert alone.copy(manifest, memoryview(bytearray(data)), NONE, START) == 0.0
    assert not alone.list_heads()[0]


def test_newest_version_in_memory_is_stored_behind_the_fence(pair: Pair, tmp_path: Path) -> None:
    for rank in (0, 1):
        pair.copy(*shard(rank, 5))
    storage = LocalStorage.open(str(tmp_path))
    for number in range(START):
        assert fence.take(storage, RUN) == number + 1
    assert store_newest(storage, pair.places[0], 1.0) == 5
    commit = read_commit(storage, RUN, 5)
    assert commit
    assert commit.epoch == START
    assert commit.world_size == 2
    assert open_step(storage, RUN, 5).manifests[1] == shard(1, 5)[0]
    assert store_newest(storage, pair.places[0], 1.0) == 0, "the store has it"
    for rank in (0, 1):
        pair.copy(*shard(rank, 6))
    fence.take(storage, RUN)
    with pytest.raises(Fenced):
        store_newest(storage, pair.places[0], 1.0)
    assert committed_steps(storage, RUN) == [5]
