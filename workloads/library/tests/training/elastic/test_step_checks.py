"""Digests of the same shards are compared over all members."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.training.elastic.step_checks import StepChecks, Verdict
from holdfast.training.gang.membership import Epoch, Member
from holdfast.training.gang.recomputation import (
    INCOMPARABLE,
    Computation,
    Computations,
    digest_values,
    identify_kind,
)

CPU = torch.device("cpu")
RIGHT = 7
WRONG = 8


def collect(text: str, *, kind: int = 1) -> Computations:
    """Collects computations such as `a0 b0!`: members a and b computed shard 0, and b was wrong."""
    computations = Computations()
    for word in text.split():
        member = "abcd".index(word[0])
        digest = WRONG if word.endswith("!") else RIGHT
        computation = Computation(member=member, kind=kind, digest=digest)
        computations.add(int(word[1]), computation)
    return computations


@pytest.mark.parametrize(
    ("computed", "suspects"),
    [
        pytest.param("a0 b0 b1!", [], id="no difference"),
        pytest.param("a0 b0!", [0, 1], id="two differ"),
        pytest.param("a0 b0! c0", [1], id="a third decides"),
        pytest.param("a0! b0 a1! c1", [0], id="two shards in common"),
        pytest.param("b0 b0!", [1], id="differs from itself"),
        pytest.param("a0 b0! a0", [0, 1], id="no third"),
        pytest.param("a0 b0! b0", [1], id="comes to the other result"),
        pytest.param("a0 b0! c1 d1!", [], id="two pairs differ"),
    ],
)
def test_a_member_is_suspected_if_it_alone_explains_the_differences(
    computed: str, suspects: list[int]
) -> None:
    assert collect(computed).find_suspects() == suspects


def test_different_machines_are_not_compared() -> None:
    mixed = collect("a0", kind=1)
    mixed.add(0, Computation(member=1, kind=2, digest=WRONG))
    assert not mixed.find_disputed()
    varying = collect("a0 a0!", kind=INCOMPARABLE)
    assert not varying.find_disputed()


def test_other_threads_make_a_cpu_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = identify_kind(CPU)
    assert kind != INCOMPARABLE
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    assert identify_kind(CPU) not in (kind, INCOMPARABLE)


def test_a_gpu_is_comparable_with_deterministic_kernels_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)
    assert identify_kind(torch.device("cuda")) == INCOMPARABLE


@given(st.integers(0, 999), st.integers(0, 31), st.sampled_from([torch.float32, torch.bfloat16]))
def test_every_flipped_bit_changes_the_digest(place: int, bit: int, dtype: torch.dtype) -> None:
    values = torch.randn(1_000, generator=torch.Generator().manual_seed(bit)).to(dtype)
    digest = digest_values(values)
    assert digest == digest_values(values.clone())
    integer = torch.int32 if dtype is torch.float32 else torch.int16
    bits = values.view(integer)
    bits[place] ^= torch.tensor(1 << bit % (8 * values.element_size())).to(integer)
    assert digest_values(values) != digest


def test_padding_and_order_do_not_change_a_digest() -> None:
    values = torch.randn(100)
    padded = torch.cat([values.flip(0), torch.zeros(28)])
    assert digest_values(padded) == digest_values(values)


def make_checks(members: int, sets: int) -> tuple[list[StepChecks], Epoch]:
    """Makes the checks of members of one kind, and their epoch."""
    epoch_members: list[Member] = []
    checks: list[StepChecks] = []
    for index in range(members):
        epoch_members.append(Member(index=index, incarnation=str(index)))
        checks.append(StepChecks(sets=sets, member=index, device=CPU))
    epoch = Epoch(number=1, members=tuple(epoch_members))
    descriptions = [member_checks.describe() for member_checks in checks]
    for member_checks in checks:
        member_checks.learn(0, epoch, descriptions)
    return checks, epoch


def play_try(checks: list[StepChecks], step: int, digests: list[dict[int, int]]) -> list[Verdict]:
    """Plays a try of which all members learn; `digests` are those of each member by set."""
    total = [0] * checks[0].slots
    for member_checks, computed in zip(checks, digests, strict=True):
        member_checks.begin_try(step)
        for number, digest in computed.items():
            member_checks.note(number, digest)
        for number, signed in enumerate(member_checks.sign()):
            total[number] += signed
    return [member_checks.compare(total, len(checks)) for member_checks in checks]


def test_all_members_reach_the_same_verdict_and_a_new_step_has_none() -> None:
    checks, _ = make_checks(3, 3)
    assert play_try(checks, 4, [{0: 5}, {1: 5}, {2: 5}]) == [Verdict()] * 3
    undecided = Verdict(disputed=1, suspects=(0, 1), repeats=True)
    assert play_try(checks, 4, [{2: 5}, {0: 6}, {1: 5}]) == [undecided] * 3
    named = Verdict(disputed=1, suspects=(1,), repeats=True)
    assert play_try(checks, 4, [{1: 5}, {2: 5}, {0: 5}]) == [named] * 3
    assert named.wrong_member == 1
    assert play_try(checks, 5, [{0: 9}, {1: 9}, {2: 9}]) == [Verdict()] * 3


def test_two_members_with_a_lasting_fault_go_on_after_some_tries() -> None:
    checks, _ = make_checks(2, 2)
    sound = {0: 5, 1: 5}
    wrong = {0: 6, 1: 6}
    verdicts: list[Verdict] = []
    for number in range(3):
        shards = (number % 2, 1 - number % 2)
        digests = [{shards[0]: sound[shards[0]]}, {shards[1]: wrong[shards[1]]}]
        verdicts.append(play_try(checks, 4, digests)[0])
    assert [verdict.repeats for verdict in verdicts] == [False, True, False]
    assert verdicts[-1].suspects == (0, 1)
    assert verdicts[-1].wrong_member is None


def test_a_lone_member_compares_its_tries_before_and_after_a_loss() -> None:
    (lone,), epoch = make_checks(1, 2)
    lone.begin_try(4)
    lone.note(0, 5)
    lone.exchange(4, epoch, None)
    assert play_try([lone], 4, [{0: 6, 1: 5}])[0].wrong_member == 0
    lone.begin_try(4)
    lone.note(0, 5)
    lone.exchange(5, epoch, None)
    assert play_try([lone], 5, [{0: 6, 1: 5}]) == [Verdict()]
