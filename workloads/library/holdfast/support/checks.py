"""Runs read-only checks; each has one row with the finding and the fix."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TypeVar

from holdfast.support.errors import Unjudged
from holdfast.support.tables import print_json, print_table
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS, EXIT_NOT_JUDGED

T = TypeVar("T")
Answer = tuple[bool, str, str]
"""True if the subject is fine, the finding, and the fix."""


class Status(StrEnum):
    OK = "ok"
    BROKEN = "broken"
    UNKNOWN = "not judged"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    name: str
    verdict: Status
    found: str
    fix: str = ""


def make_answer(wrong: Sequence[str], well: str, fix: str) -> Answer:
    """Makes an answer whose finding is all of `wrong`, or `well` if nothing is wrong."""
    return not wrong, "; ".join(wrong) or well, fix


def examine(subject: T, probes: Sequence[tuple[str, Callable[[T], Answer]]]) -> Iterator[Check]:
    """Yields one check after the other. A probe raises Unjudged if it cannot decide."""
    for name, probe in probes:
        try:
            ok, finding, fix = probe(subject)
        # Any other error is a bug, and must not pass for "not judged".
        except Unjudged as error:
            yield Check(
                name=name,
                verdict=Status.UNKNOWN,
                found=str(error).splitlines()[0],
            )
        else:
            yield Check(
                name=name,
                verdict=Status.OK if ok else Status.BROKEN,
                found=finding,
                fix="" if ok else fix,
            )


def show(checks: Sequence[Check], *, as_json: bool) -> int:
    """Prints the checks. Returns the exit code: broken before unknown, because it can be fixed."""
    if as_json:
        print_json("doctor", checks=[asdict(check) for check in checks])
    else:
        rows = [(check.name, check.verdict, check.found, check.fix) for check in checks]
        print_table(["CHECK", "", "FOUND", "FIX"], rows)
    verdicts = {check.verdict for check in checks}
    if Status.BROKEN in verdicts:
        return EXIT_FINDINGS
    if Status.UNKNOWN in verdicts:
        return EXIT_NOT_JUDGED
    return EXIT_DONE
