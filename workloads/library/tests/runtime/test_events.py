import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.runtime.events import EventLog

WRITER = """
import sys
from holdfast.runtime.events import EventLog
log = EventLog.open(sys.argv[1], job="j", kind="training")
for n in range(300):
    log.emit("window", first_step=n, last_step=n, seconds=0.5, loss=float(n), pad="x" * (n * 7))
"""


def parse_lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_common_and_own_fields(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "events.jsonl"
    with EventLog.open(path, job="run-1", kind="training") as log:
        log.emit("window", seconds=0.25, loss=float("nan"))
    (line,) = parse_lines(path)
    assert line.pop("t") == pytest.approx(time.time(), abs=60)
    common = {
        "v": 1,
        "event": "window",
        "job": "run-1",
        "kind": "training",
        "process": log.process,
    }
    assert line == common | {"seconds": 0.25, "loss": None}


def test_an_unknown_event_is_rejected(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "events.jsonl", job="run-1", kind="training") as log:
        with pytest.raises(ValueError, match="'comit'"):
            log.emit("comit")
        assert (tmp_path / "events.jsonl").read_text() == ""


@pytest.mark.process
def test_lines_from_several_processes_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen(command) for _ in range(3)]
    for writer in writers:
        assert writer.wait() == 0
    lines = parse_lines(path)
    assert len(lines) == 900
    assert len({line["process"] for line in lines}) == 3


def test_a_full_disk_or_a_torn_line_loses_one_line_only(tmp_path: Path) -> None:
    with EventLog(os.open("/dev/full", os.O_WRONLY), job="j", kind="training") as log:
        log.emit("exit", code=0, step=1)
    path = tmp_path / "e"
    path.write_text('{"v": 1, "ev')
    with EventLog.open(path, job="j", kind="training") as log:
        log._is_torn = True  # as after a short write
        log.emit("exit", code=0, step=1)
    assert json.loads(path.read_text().splitlines()[1])["event"] == "exit"


def test_without_a_path_lines_go_to_the_environments_file_or_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for target in (str(tmp_path / "env.jsonl"), ""):
        monkeypatch.setenv("HOLDFAST_EVENTS", target)
        with EventLog.open(None, job="j", kind="training") as log:
            log.emit("start", rank=0, world_size=1, attempt=0)
    assert parse_lines(tmp_path / "env.jsonl")[0]["event"] == "start"
    assert json.loads(capfd.readouterr().out)["event"] == "start"
