"""Event lines that pods print."""

import json
import random
import tempfile
from pathlib import Path

from holdfast.ledger.events import parse
from holdfast.ledger.job_ledger import job_ledgers
from holdfast.ledger.job_summary import job_summaries
from holdfast.report.cli import read_report
from holdfast.report.page import render
from holdfast.support.errors import InputError
from workloads.library.tests import sample
from workloads.library.tests.fuzz.campaign import Border
from workloads.library.tests.fuzz.mutations import draw_hostile

NOW_S = sample.EPOCH + 3_600


def _lines() -> list[bytes]:
    return sample.encoded(sample.training("good", total=12))[:60]


def _enter_lines(data: bytes) -> None:
    reading = parse([*_lines(), *data.split(b"\n")], now_s=NOW_S)
    job_ledgers(reading.events)
    job_summaries(reading.events)


def _enter_report(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.jsonl").write_bytes(b"\n".join([*_lines(), data]))
        render(read_report(Path(folder), None))


def _make_line(draw: random.Random) -> bytes:
    return draw_hostile(tuple(json.loads(line) for line in _lines()), draw)


BORDERS = {
    "event lines": Border(make=_make_line, enter=_enter_lines),
    "report": Border(
        make=_make_line,
        enter=_enter_report,
        refusals=(InputError,),
        cpu_s=30,
    ),
}
