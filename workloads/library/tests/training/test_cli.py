"""What podFailurePolicy reads: bad input and bugs end the command with a code that is never
retried.
"""

from collections.abc import Iterator

import pytest

from holdfast.checkpoint.errors import RankLost
from holdfast.runtime import shutdown as notices
from holdfast.support.errors import run_cli
from holdfast.training.cli import app
from holdfast.training.trainer.rank import failure_code
from holdfast.vocabulary.exit_codes import FATAL_EXIT_CODES, combine_exit_codes


@pytest.fixture(autouse=True)
def signal_cleanup() -> Iterator[None]:
    """Releases the signals after a test: a command takes them and leaves them to its process."""
    yield
    if notices.is_installed():
        notices.of_process().uninstall()


def run_command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        run_cli(lambda: app(["run", *arguments]))
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ranks", "3"), "batch 16 over 3 ranks"),
        (("--steps", "0"), "steps is out of range"),
        (("--device", "tpu"), "unknown device"),
        *[
            (("--nodes", "2", "--rendezvous", address), "several nodes need a rendezvous address")
            for address in ("", "first-pod", "tcp://first-pod:29500", "first-pod:70000")
        ],
        (("--set", "peer_timeout_s=0"), "peer_timeout_s is out of range"),
        (("--window", "2"), "grace period in seconds is out of range"),
        (("--run", "../up"), "run name"),
        (("--stpes", "3"), "--stpes"),
        (("--steps", "many"), "--steps"),
        (("positional",), "positional"),
    ],
)
def test_bad_arguments_are_a_bug_to_a_job(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(*arguments) in FATAL_EXIT_CODES
    assert message in capsys.readouterr().err


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
def test_the_pod_exits_with_what_its_job_should_do(
    codes: list[int], noticed: bool, expected: int
) -> None:
    assert combine_exit_codes(codes, noticed=noticed) == expected


@pytest.mark.parametrize(
    ("error", "noticed", "expected"),
    [
        (RuntimeError("[pair.cc:561] Connection closed by peer"), False, 75),
        (RuntimeError("[pair.cc:561] Connection closed by peer"), True, 143),
        # Raised by gloo in all other waits on a connection once one of them has timed out.
        (RuntimeError("Application timeout caused pair closure"), False, 75),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), True, 70),
        (RankLost("no answer for hello from rank 1 within 600 s"), False, 75),
        (KeyError("loss"), False, 70),
    ],
)
def test_a_lost_peer_is_retried_and_a_bug_is_not(
    error: Exception, noticed: bool, expected: int
) -> None:
    code = failure_code(error, noticed=noticed)
    assert code == expected
    assert (code in FATAL_EXIT_CODES) == (expected == 70)
