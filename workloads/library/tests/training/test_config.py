import pytest

from holdfast.checkpoint.errors import RankLost
from holdfast.contract.errors import InputError
from holdfast.contract.exit_codes import FATAL_EXIT_CODES, of_ranks
from holdfast.training.config import TrainConfig
from holdfast.training.progress import Progress
from holdfast.training.rank import failure_code


@pytest.mark.parametrize(
    ("codes", "noticed", "expected"),
    [
        ([0, 0], False, 0),
        ([0, 0], True, 0),
        ([143, 143], True, 143),
        ([143, 0], False, 143),
        ([-15], True, 143),
        ([-9], True, 143),
        ([-9], False, 137),
        ([70, 75], True, 70),
        ([2], False, 2),
        ([75], False, 75),
        ([], False, 75),
        ([], True, 143),
    ],
)
def test_the_pod_exits_with_what_its_job_should_do(codes: list[int], noticed: bool, expected: int) -> None:
    assert of_ranks(codes, noticed=noticed) == expected


@pytest.mark.parametrize(
    ("error", "noticed", "expected"),
    [
        (RuntimeError("[pair.cc:561] Connection closed by peer"), False, 75),
        (RuntimeError("[pair.cc:561] Connection closed by peer"), True, 143),
        # By gloo, of the other waits on a connection of which one has timed out.
        (RuntimeError("Application timeout caused pair closure"), False, 75),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), True, 70),
        (RankLost("no answer for hello from rank 1 within 600 s"), False, 75),
        (KeyError("loss"), False, 70),
    ],
)
def test_a_lost_peer_is_retried_and_a_bug_is_not(error: Exception, noticed: bool, expected: int) -> None:
    code = failure_code(error, noticed=noticed)
    assert code == expected
    assert (code in FATAL_EXIT_CODES) == (expected == 70)


def test_progress_goes_on_at_the_sample_notes_the_resize_and_refuses_another_run() -> None:
    written, read = (Progress(TrainConfig(checkpoints="x", ranks=ranks), fingerprint="f") for ranks in (4, 2))
    written.advance()
    read.load_state_dict(written.state_dict())
    assert (read.consumed, read.resized_from) == (16, 4)
    for changed in ("seed", "data", "model"):
        with pytest.raises(InputError, match=f"written with another value of {changed}"):
            read.load_state_dict(written.state_dict() | {changed: "other"})
