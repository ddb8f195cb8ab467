"""Read-only checks, one row each: what was found, and the fix."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TypeVar

from holdfast.support.errors import Unjudged
from holdfast.support.tables import print_json, print_table
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS, EXIT_NOT_JUDGED

T = TypeVar("T")
Answer = tuple[bool, str, str]
"""Whether it is well, what was found, and the fix."""


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


def lacking(wrong: Sequence[str], well: str, fix: str) -> Answer:
    """Broken by all that is wrong; `well` where nothing is."""
    return not wrong, "; ".join(wrong) or well, fix


def examine(subject: T, probes: Sequence[tuple[str, Callable[[T], Answer]]]) -> Iterator[Check]:
    """One check after the other, as they come. A probe raises Unjudged where it cannot know."""
    for name, probe in probes:
        try:
            ok, found, fix = probe(subject)
        # Nothing wider: any other error is a bug and must not pass for "not judged".
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
                found=found,
                fix="" if ok else fix,
            )


def show(checks: Sequence[Check], *, as_json: bool) -> int:
    """The exit code: broken before unknown, since it can be fixed."""
    if as_json:
        print_json("doctor", checks=[asdict(check) for check in checks])
    else:
        print_table(
            ["CHECK", "", "FOUND", "FIX"], [(c.name, c.verdict, c.found, c.fix) for c in checks]
        )
    verdicts = {c.verdict for c in checks}
    if Status.BROKEN in verdicts:
        return EXIT_FINDINGS
    return EXIT_NOT_JUDGED if Status.UNKNOWN in verdicts else EXIT_DONE
