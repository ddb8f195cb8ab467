"""What elastic gangs are made of, without a process: shares, sums that no grouping changes, epochs,
odd messages.
"""

import queue
import select
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from holdfast.checkpoint import CheckpointExit
from holdfast.checkpoint.state import capture
from holdfast.checkpoint.stores import LocalStorage
from holdfast.support.errors import InputError
from holdfast.training.elastic import transfer
from holdfast.training.elastic.gradients import ExactGradientSum, GradientSum
from holdfast.training.elastic.shards import GangProgress, resolve_shards, share
from holdfast.training.elastic.transfer import load_state, read_descriptions
from holdfast.training.errors import GroupLost
from holdfast.training.gang import peer_client
from holdfast.training.gang.liveness import MAX_REPEATS, Lag, Watch
from holdfast.training.gang.member_addresses import Places, addresses
from holdfast.training.gang.member_server import EPOCHS, Control
from holdfast.training.gang.membership import (
    KEPT_EPOCHS,
    Epoch,
    Member,
    newest_number,
    propose,
    read_epoch,
)
from holdfast.training.gang.node import ALONE, Node, collect_parameters
from holdfast.training.gang.peer_client import Peers, Survey
from holdfast.training.gang.regroup import LEAVING
from holdfast.training.sharded.epoch_end import LeavingNodes
from holdfast.training.sharded.settings import ShardedNode
from holdfast.training.tcp_gate import join_key
from holdfast.vocabulary.environment import ENV_KEY_FILE
from workloads.library.tests.training.elastic.gangs import free_ports


@given(st.integers(1, 500), st.integers(1, 64))
@settings(max_examples=50)
def test_every_shard_belongs_to_one_rank_and_shares_differ_by_one(shards: int, world: int) -> None:
    shares = [share(shards, rank, world) for rank in range(world)]
    assert list(chain.from_iterable(shares)) == list(range(shards))
    sizes = [len(part) for part in shares]
    assert max(sizes) - min(sizes) <= 1


PLACES = (("127.0.0.1", 29_500),) * 4
WAIT_S = 60.0
"""Longer than any answer takes on a busy machine."""


def make_node(nodes: int = 4, **changed: Any) -> ShardedNode:
    settings = {
        "command": ["true"],
        "checkpoints": "c",
        "run": "r",
        "place": 0,
        "processes": 1,
        "copies": 0,
    } | changed
    return ShardedNode(nodes=PLACES[:nodes], **settings)


@pytest.mark.parametrize(
    ("call", "got"),
    [
        (lambda: resolve_shards(3, 4), "3 shards for 4 processes"),
        (lambda: resolve_shards(-1, 2), "-1 shards"),
        (lambda: resolve_shards(1 << 20, 4), "1048576 shards"),
        (lambda: resolve_shards(13, 8, 2), "13 shards for 8 processes, of which 2"),
        (lambda: Places(nodes=PLACES, index=4), "4"),
        (
            lambda: Places(
                nodes=PLACES,
                index=0,
                min_nodes=3,
                ranks_per_node=2,
            ),
            "3",
        ),
        (lambda: Places(nodes=PLACES, index=0, ranks_per_node=3), "3 with 4 addresses"),
        (lambda: addresses("127.0.0.1", 65534, 4), "4 nodes of 1 processes from port 65534"),
        (lambda: make_node(1, copies=1), "1"),
        (lambda: make_node(copies=2), "2"),
        (lambda: make_node(place=4), "4"),
        (lambda: make_node(processes=0), "0"),
        (lambda: make_node(wait_s=-1.0), "-1"),
    ],
)
def test_numbers_that_do_not_fit_the_gang_are_refused(call: Callable[[], object], got: str) -> None:
    with pytest.raises(InputError) as refused:
        call()
    assert str(refused.value.got).startswith(got)
    assert resolve_shards(0, 8, 2) % 2 == 0


@pytest.mark.parametrize(
    ("local", "difference"),
    [
        (
            {
                "model": nn.Linear(2, 2),
                "extra": {"at": 1},
            },
            r"only here: \['extra'\]",
        ),
        ({"model": nn.Linear(2, 3)}, "size mismatch"),
        ({"network": nn.Linear(2, 2)}, r"only here: \['network'\]; only there: \['model'\]"),
    ],
)
def test_a_member_whose_state_is_another_is_refused(local: dict[str, Any], difference: str) -> None:
    remote = capture({"model": nn.Linear(2, 2)})
    with pytest.raises(InputError, match=f"(?s)state of this member.*{difference}"):
        load_state(local, remote.skeleton, remote.tensors)


@pytest.mark.parametrize(
    "described",
    [
        [
            [
                "w",
                "load",
                [2],
                [],
            ]
        ],
        [
            [
                "w",
                "int1",
                [2],
                [],
            ]
        ],
        [
            [
                "w",
                3,
                [2],
                [],
            ]
        ],
        [
            [
                "w",
                "float32",
                [-2],
                [],
            ]
        ],
        [
            [
                "w",
                "float32",
                [1 << 40, 1 << 40],
                [],
            ]
        ],
        [
            [
                "w",
                "float32",
                "22",
                [],
            ]
        ],
        [
            [
                "w",
                "float32",
                [2.5],
                [],
            ]
        ],
        [
            [
                "w",
                "float32",
                [2],
                [[2], [1]],
            ]
        ],
        [["w", "float32"]],
        7,
        [None],
    ],
)
def test_a_state_that_no_member_would_give_takes_no_memory(described: Any) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        read_descriptions(described, most_bytes=1 << 30)
    (description,) = read_descriptions(
        [
            [
                "w",
                "bfloat16",
                [2, 3],
                [],
            ]
        ],
        most_bytes=12,
    )
    assert description.key == "w"
    assert description.shape == [2, 3]
    assert description.dtype is torch.bfloat16
    assert description.layout == []


class Lost(Node):
    def vote(self, count: int = 0) -> NoReturn:
        raise GroupLost("a member is gone")


def add_shards(exact: ExactGradientSum, parameter: Any, gradients: torch.Tensor) -> torch.Tensor:
    """A member's sum of these shards, before the exchange."""
    exact.begin()
    for gradient in gradients:
        parameter.grad += gradient
        exact.add_shard()
    return exact._sums[0].clone()


def test_a_state_without_room_here_ends_this_member_and_not_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch reports it as it reports a lost peer, and the gang would form again forever."""
    described = [["w", "uint8", [1 << 50], []]]
    monkeypatch.setattr(transfer, "MIN_LIMIT_BYTES", 1 << 60)
    monkeypatch.setattr(transfer, "gather_steps", lambda _step, _group: [7, -1])
    monkeypatch.setattr(transfer, "broadcast_json", lambda *_: [{}, described])
    group = cast(Any, SimpleNamespace(rank=lambda: 1))
    state = {"model": nn.Linear(2, 2)}
    with pytest.raises(CheckpointExit) as error:
        transfer.synchronize(
            state,
            -1,
            torch.device("cpu"),
            group,
            ALONE,
        )
    assert "has no memory for the state" in error.value.reason


def test_a_model_with_nothing_to_train_is_refused() -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    for state in ({"model": model}, {"extra": {"at": 1}}):
        with pytest.raises(InputError, match="nothing to train"):
            collect_parameters(state)
    assert len(collect_parameters({"model": model, "head": nn.Linear(2, 1)})) == 4


@given(st.integers(0, 10_000), st.integers(-20, 20))
@settings(max_examples=30)
def test_an_exact_sum_is_the_same_for_every_grouping(seed: int, magnitude: int) -> None:
    gradients = torch.randn(6, 50, generator=torch.Generator().manual_seed(seed)) * 2.0**magnitude
    exact = ExactGradientSum([parameter := nn.Parameter(torch.zeros(50))], flags=1)
    exact.exponent = int(gradients.abs().max().log2().ceil()) + 1
    whole = add_shards(exact, parameter, gradients)
    for groups in ([3, 3], [1, 2, 3], [1] * 6):
        parts = []
        for part in gradients.split(groups):
            parts.append(add_shards(exact, parameter, part))
        assert torch.equal(whole, torch.stack(parts).sum(0))


def test_exact_gradient_equals_a_plain_sum_and_keeps_nan() -> None:
    parameter: Any = nn.Parameter(torch.zeros(100))
    gradients = torch.randn(6, 100)
    exact = ExactGradientSum([parameter], flags=2)
    add_shards(exact, parameter, gradients)
    while (flags := exact.reduce([1, 0])) is None:
        # Gradients of 1 and more do not fit at first: the step is done again with room for them.
        add_shards(exact, parameter, gradients)
    assert flags == [1, 0]
    torch.testing.assert_close(parameter.grad, gradients.double().sum(0).float())
    # Where a member is lost in a sum that does not fit, some of the others have a larger exponent
    # and some have not.
    before = exact.exponent
    add_shards(exact, parameter, 1e6 * gradients)
    assert exact.reduce([0, 0]) is None
    assert exact.exponent > before
    with pytest.raises(GroupLost):
        exact.reduce([0, 0], node=Lost())
    assert exact.exponent == before
    add_shards(exact, parameter, torch.full((1, 100), torch.inf))
    assert exact.reduce([0, 0]) is not None
    assert torch.isnan(parameter.grad).all()


def test_a_loop_that_clears_gradients_itself_is_summed_too() -> None:
    layer = nn.Linear(3, 2)
    plain = GradientSum(layer.parameters(), flags=1)
    plain.begin()
    layer.zero_grad(set_to_none=True)
    layer(torch.ones(1, 3)).sum().backward()
    assert plain.reduce([1]) == [1]
    assert torch.equal(layer.weight.grad, torch.ones(2, 3))  # pyright: ignore[reportArgumentType]


def members(*places: int) -> tuple[Member, ...]:
    return tuple(Member(index=place, incarnation=f"p{place}") for place in places)


def test_only_one_proposal_is_accepted(tmp_path: Path) -> None:
    storage = LocalStorage.open(str(tmp_path))
    halves = []
    for places in ((0, 1), (2, 3)):
        halves.append(Epoch(number=4, members=members(*places)))
    assert [propose(storage, "run", half) for half in halves] == [halves[0]] * 2
    assert read_epoch(storage, "run", newest_number(storage, "run")) == halves[0]


def test_a_number_whose_epoch_was_deleted_is_not_given_again(tmp_path: Path) -> None:
    """A lead that was frozen proposes the epoch after its own, and the gang has gone on."""
    storage = LocalStorage.open(str(tmp_path))
    newest = Epoch(number=KEPT_EPOCHS + 10, members=members(1, 2))
    for number in range(1, newest.number + 1):
        propose(storage, "run", Epoch(number=number, members=members(1, 2)))
    late = Epoch(number=2, members=members(0))
    assert propose(storage, "run", late) == newest
    assert len(list((tmp_path / "run" / "gang").glob("*.json"))) == KEPT_EPOCHS


@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", '{"number": 1}', '{"number": 1, "members": [], "ending": false}', "[" * 9999],
)
def test_an_epoch_that_is_none_is_an_error_with_a_fix(tmp_path: Path, body: str) -> None:
    storage = LocalStorage.open(str(tmp_path))
    propose(storage, "run", Epoch(number=1, members=members(0)))
    next((tmp_path / "run" / "gang").glob("*1.json")).write_text(body)
    with pytest.raises(InputError, match="delete that object"):
        read_epoch(storage, "run", 1)


def test_stranger_without_the_key_is_rejected_and_a_wrong_key_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Answers like a pod where the secret is missing on one node: both live, and neither believes
    what the other answers.
    """
    (port,) = free_ports(1)
    (tmp_path / "key").write_text("k" * 64)
    monkeypatch.setenv(ENV_KEY_FILE, str(tmp_path / "key"))
    key = join_key("run")
    monkeypatch.delenv(ENV_KEY_FILE)
    stranger = Peers((("127.0.0.1", port),), join_key("run"))
    with closing(Control(Member(index=0, incarnation="me"), port, key)) as control:
        assert (
            stranger.ask(
                0,
                "/join",
                WAIT_S,
                index=1,
                incarnation="stranger",
            )
            is None
        )
        assert stranger.ask(0, "/report", WAIT_S, epoch=0, index=1) is None
        assert stranger.look([0]) == {}, "who belongs to the gang is no stranger's business"
        assert control.get_joiners() == {}
        assert control.get_reports(0) == frozenset()
    assert (
        caplog.text.count("member 0 has another key than this process: mount the same secret") == 1
    )


def test_only_members_may_report_and_odd_questions_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_client, "SURVEY_S", WAIT_S)
    (port,) = free_ports(1)
    me = Member(index=0, incarnation="me")
    other = Member(index=1, incarnation="b")
    before = Member(index=1, incarnation="a")
    peers = Peers((("127.0.0.1", port),), b"run")
    with closing(Control(me, port, b"run")) as control:
        for number in range(1, 2 * EPOCHS):
            control.enter(Epoch(number=number, members=(me, other)), "member")
        for asks, epoch in ((before, number), (other, number + 1), (other, 1), (other, -1)):
            assert peers.ask(0, "/report", WAIT_S, **asdict(asks), epoch=epoch), (
                "answered, and changes nothing"
            )
            assert not control.get_reports(epoch)
        assert peers.ask(0, "/report", WAIT_S, **asdict(other), epoch=number)
        assert control.get_reports(number) == {1}
        before = peers.look([0])
        for body in (
            {"index": "x"},
            {"epoch": None},
            {
                "index": [1],
                "incarnation": {},
            },
            {"index": 0, "x": "y" * 100_000},
        ):
            assert (
                peers.ask(0, "/join", WAIT_S, **body)
                is peers.ask(0, "/report", WAIT_S, **body)
                is None
            )
        assert peers.look([0]) == before, "odd questions change nothing"
        assert control.get_joiners() == {}, "odd questions change nothing"


class Recorder:
    """A relay that records what a client sends over one connection."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.recorded = b""
        self._thread = threading.Thread(target=self._relay, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._thread.join(timeout=30)
        self._listener.close()

    def _relay(self) -> None:
        client, _ = self._listener.accept()
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            while True:
                ready, _, _ = select.select([client, server], [], [], 30)
                for end in ready:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    other = server if end is client else client
                    other.sendall(data)
                    if end is client:
                        self.recorded += data


def send_recorded(port: int, recorded: bytes) -> bytes:
    """Returns all that a server answers to these bytes."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(recorded)
        while data := connection.recv(1 << 16):
            answer += data
    return answer


def test_a_recorded_question_is_never_accepted_again() -> None:
    """The member that answered it rejects it, however often it was asked since, and so does one
    that was started again.
    """
    (port,) = free_ports(1)
    with closing(Recorder(port)) as recorder:
        through_recorder = Peers((("127.0.0.1", recorder.port),), b"run")
        with closing(Control(Member(index=0, incarnation="me"), port, b"run")) as control:
            dead = Member(index=1, incarnation="dead")
            assert through_recorder.ask(0, "/join", 20.0, **asdict(dead))
            assert control.get_joiners() == {1: dead}
    assert b"/join" in recorder.recorded
    with closing(Control(Member(index=0, incarnation="again"), port, b"run")) as control:
        for _ in range(2):
            answer = send_recorded(port, recorder.recorded)
            assert b" 403 " in answer
            assert b"incarnation" not in answer
        assert control.get_joiners() == {}
        begin = recorder.recorded.index(b"POST")
        post = recorder.recorded[begin:]
        answer = send_recorded(port, post)
        assert b" 403 " in answer, "without a challenge"


@pytest.mark.process
def test_a_client_that_stops_after_its_challenge_is_disconnected() -> None:
    (port,) = free_ports(1)
    with closing(Control(Member(index=0, incarnation="me"), port, b"run")):
        address = ("127.0.0.1", port)
        with socket.create_connection(address, timeout=60) as connection:
            connection.sendall(b"GET /challenge HTTP/1.1\r\nHost: x\r\n\r\n")
            stop = threading.Event()

            def send_a_byte_at_a_time() -> None:
                with suppress(OSError):
                    while not stop.wait(0.5):
                        connection.sendall(b"x")

            sender = threading.Thread(target=send_a_byte_at_a_time)
            sender.start()
            with suppress(ConnectionError):
                while connection.recv(1 << 16):
                    pass
            stop.set()
            sender.join()


def test_member_addresses() -> None:
    assert addresses("127.0.0.1", 5000, 2) == (("127.0.0.1", 5000), ("127.0.0.1", 5002))
    assert addresses("job-{place}", 5000, 2) == (("job-0", 5000), ("job-1", 5000))
    of_two = (("job-0", 5000), ("job-0", 5002), ("job-1", 5000), ("job-1", 5002))
    assert addresses("job-{place}", 5000, 2, 2) == of_two


def test_run_facts_must_not_change_nor_the_gpu_if_sums_are_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gang(
        shards: int = 6, *, gpu: str = "", kind: type[GradientSum] = GradientSum, **facts: int
    ) -> GangProgress:
        monkeypatch.setattr("holdfast.training.elastic.shards._get_gpu_name", lambda device: gpu)
        sums = kind(nn.Linear(2, 2).parameters(), flags=1)
        return GangProgress(
            shards=shards,
            seed=0,
            facts=facts,
            gradients=sums,
        )

    def read_refusal(other: GangProgress, begun: dict[str, Any]) -> str:
        with pytest.raises(InputError) as error:
            other.load_state_dict(begun)
        return f"{error.value.what}: {error.value.got}, not {error.value.allowed}"

    begun = gang(micro_batch=4, gpu="A100").state_dict()
    plain = gang().state_dict()
    gang(micro_batch=4, gpu="L4").load_state_dict(begun)
    gang(micro_batch=8).load_state_dict(plain)
    assert "value of micro_batch: 8, not 4, as in" in read_refusal(gang(micro_batch=8), begun)
    assert "value of shards: 12, not 6, as in" in read_refusal(gang(12), begun)
    exact = partial(gang, kind=ExactGradientSum)
    begun = exact(gpu="L4").state_dict()
    exact(gpu="L4").load_state_dict(begun)
    # older
    exact(gpu="L4").load_state_dict({key: value for key, value in begun.items() if key != "gpu"})
    for other in ("A100", ""):
        assert f"value of gpu: {other!r}, not 'L4', as in" in read_refusal(exact(gpu=other), begun)


def test_repeated_step_fails_with_reason_and_a_success_resets_the_count() -> None:
    lag = Lag(10.0)
    for step in [*range(MAX_REPEATS), *[7] * MAX_REPEATS]:
        lag.record_repeat(step, "timed out")
    assert lag.bound_s == 10.0 * 4**MAX_REPEATS
    with pytest.raises(
        InputError,
        match=r"(?s)step 7 failed 5 times with the same members: timed out.*2560 s apart",
    ):
        lag.record_repeat(7, "timed out")


EPOCH = Epoch(number=3, members=members(*range(4)))


class Answers:
    """All members are alive. After three surveys the lead reports that it has lost the epoch."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self._times = 0

    def survey(self, places: list[int]) -> Survey:
        self.asked.put(places)
        self._times += 1
        report = {"lost": EPOCH.number} if self._times > 3 else {}
        answers = {}
        for place in places:
            answers[place] = {"incarnation": f"p{place}"} | (report if not place else {})
        return Survey(answers=answers, unanswered=frozenset())


@pytest.mark.parametrize(("me", "places"), [(0, [1, 2, 3]), (2, [0])])
def test_only_the_lead_asks_all_members(me: int, places: list[int]) -> None:
    answers = Answers()
    aborts = queue.SimpleQueue[None]()
    watch = Watch(
        EPOCH.members[me],
        cast(Peers, answers),
        lambda: aborts.put(None),
        silent_s=30.0,
        only_lead_asks_all=True,
    )
    with watch.over(EPOCH):
        assert answers.asked.get(timeout=30) == places
        if me:  # what the lead has lost is lost
            aborts.get(timeout=30)
    watch.close()


class Surveyed:
    """Peers of four places, of which some answer that they leave."""

    addresses = (("10.0.0.1", 1),) * 4

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.leaving: list[int] = []
        self.slow: frozenset[int] = frozenset()

    def survey(self, places: list[int]) -> Survey:
        self.asked.append(places)
        answers = {place: {"index": place, LEAVING: 1} for place in places if place in self.leaving}
        return Survey(answers=answers, unanswered=self.slow & {*places})


def test_unreachable_nodes_are_asked_once_for_the_memory_that_they_serve() -> None:
    """Asking a machine that is gone takes a second, for which all ranks would wait."""
    peers = Surveyed()
    nodes = LeavingNodes(cast(Peers, peers))
    peers.leaving = [1]
    peers.slow = frozenset({2})
    first = Epoch(number=1, members=members(0))
    assert [status["index"] for status in nodes.find(first)] == [1]
    peers.leaving = [1, 2]
    assert [status["index"] for status in nodes.find(first)] == [1, 2]
    # A place that was a member since may leave again.
    nodes.find(Epoch(number=2, members=members(0, 3)))
    nodes.find(first)
    assert peers.asked == [[1, 2, 3], [1, 2], [1, 2], [1, 2, 3]]
