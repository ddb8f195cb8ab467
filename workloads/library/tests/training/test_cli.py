"""What podFailurePolicy reads: bad input ends the command with a code that is never retried, before any rank starts."""

from collections.abc import Iterator

import pytest

from holdfast.contract.errors import run_cli
from holdfast.contract.exit_codes import FATAL_EXIT_CODES
from holdfast.runtime import shutdown as notices
from holdfast.training.cli import app


@pytest.fixture(autouse=True)
def this_process_goes_on() -> Iterator[None]:
    yield
    notices.of_process().nothing_at_stake = False


def ended(*arguments: str) -> int:
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
    assert ended(*arguments) in FATAL_EXIT_CODES
    assert message in capsys.readouterr().err
