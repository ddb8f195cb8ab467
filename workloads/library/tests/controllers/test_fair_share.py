"""Tests that a flood of event lines delays no other writer, and that what is lost is counted."""

from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field

import pytest
import requests

from holdfast.controllers import cloud_logs, fair_share
from holdfast.controllers.cloud_logs import CloudLogs
from holdfast.ledger.events import parse
from workloads.library.tests import sample
from workloads.library.tests.controllers.log_server import LogServer, serving
from workloads.library.tests.sample import EPOCH, line

# A tenth of the real numbers, so that 400 lines a second are 40.
SCALE = 10
JOB = "k8s-pod/jobset_sigs_k8s_io/jobset-name"


@dataclass
class Moment:
    now_s: float = EPOCH


@dataclass
class Writers:
    """Writes lines of pods over time, and reads them a turn at a time."""

    server: LogServer
    source: CloudLogs
    moment: Moment
    lines: int = 0
    read: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    dropped: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    newest_s: dict[str, float] = field(default_factory=dict)

    def write(self, pod: str, job: str, lines_per_s: float) -> None:
        """Writes the lines of one turn."""
        count = round(lines_per_s * cloud_logs.EVERY_S)
        rows = []
        for n in range(count):
            t = self.moment.now_s + (n + 1) / count * cloud_logs.EVERY_S
            rows.append(line(t, "window", job, seconds=1, process=pod, last_step=self.lines + n))
        self.lines += count
        self.server.add_lines(sample.encoded(rows), {JOB: job}, "training", pod)

    def turn(self) -> None:
        self.moment.now_s += cloud_logs.EVERY_S
        self.source.turn()
        for batch in self.source.news():
            self.read[batch.pod] += len(batch.lines)
            self.dropped[batch.job] += getattr(batch, "dropped", 0)
            for event in parse(batch.lines).events:
                newest_s = max(self.newest_s.get(batch.pod, 0.0), event.t_us / 1e6)
                self.newest_s[batch.pod] = newest_s

    def age_s(self, pod: str) -> float:
        return self.moment.now_s - self.newest_s[pod]


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> Generator[Writers]:
    monkeypatch.setattr(cloud_logs, "PAGE", cloud_logs.PAGE // SCALE)
    for name in ("POD_LINES_PER_S", "JOB_LINES_PER_S"):
        share = getattr(fair_share, name, 0)
        monkeypatch.setattr(fair_share, name, share / SCALE)
    moment = Moment()
    with serving(LogServer(page=cloud_logs.PAGE)) as server, requests.Session() as session:
        session.trust_env = False
        source = CloudLogs(
            session,
            "acme-ai",
            "holdfast-example",
            url=server.url,
            clock=lambda: moment.now_s,
        )
        yield Writers(server, source, moment)


@pytest.mark.parametrize("flood", [400, 800])
def test_one_flooding_pod_delays_no_other(writers: Writers, flood: int) -> None:
    ages: list[float] = []
    for _ in range(24):
        writers.write("flood-0", "flood", flood / SCALE)
        writers.write("victim-0", "victim", 0.2)
        writers.turn()
        ages.append(writers.age_s("victim-0") if "victim-0" in writers.newest_s else 0.0)
    assert max(ages) <= 60
    assert writers.read["victim-0"] >= 0.2 * cloud_logs.EVERY_S * 23
    assert writers.age_s("flood-0") <= 60, "of a flood the newest lines are read"
    written = 24 * cloud_logs.EVERY_S * flood / SCALE
    assert writers.dropped["flood"] == pytest.approx(written - writers.read["flood-0"], rel=0.1)
    assert not writers.dropped["victim"]


def test_flooding_pod_does_not_delay_another_pod_in_its_job(writers: Writers) -> None:
    for _ in range(24):
        writers.write("flood-0", "same", 400 / SCALE)
        writers.write("victim-0", "same", 0.2)
        writers.turn()
    assert writers.age_s("victim-0") <= 60


def test_many_flooding_pods_delay_no_other_job(writers: Writers) -> None:
    for _ in range(24):
        for n in range(40):
            writers.write(f"flood-{n}", "flood", 10 / SCALE)
        writers.write("victim-0", "victim", 0.2)
        writers.turn()
    assert writers.age_s("victim-0") <= 60
    assert writers.dropped["flood"]
    assert not writers.dropped["victim"]


def test_many_jobs_that_together_write_too_much_are_read_newest_first(writers: Writers) -> None:
    for _ in range(24):
        for n in range(40):
            writers.write(f"pod-{n}", f"job-{n}", 15 / SCALE)
        writers.turn()
    assert max(writers.age_s(f"pod-{n}") for n in range(40)) <= 60
    assert writers.dropped[""]


def test_writer_that_slows_down_is_read_whole_again(writers: Writers) -> None:
    for lines_per_s in (400, 400, 400, *[10] * 12):
        writers.write("flood-0", "flood", lines_per_s / SCALE)
        writers.write("victim-0", "victim", 0.2)
        writers.turn()
    before = writers.read["flood-0"], writers.dropped["flood"]
    for _ in range(8):
        writers.write("flood-0", "flood", 1)
        writers.turn()
    assert writers.read["flood-0"] - before[0] == 8 * cloud_logs.EVERY_S
    assert writers.dropped["flood"] == before[1]


def test_look_back_delays_the_newest_lines_for_a_limited_time(
    writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud_logs, "LOOK_BACK_PATIENCE_S", 60.0)
    writers.moment.now_s -= 600
    for _ in range(40):
        for n in range(10):
            writers.write(f"pod-{n}", f"job-{n}", 1)
        writers.moment.now_s += cloud_logs.EVERY_S
    patience_turns = cloud_logs.LOOK_BACK_PATIENCE_S / cloud_logs.EVERY_S
    for _ in range(round(patience_turns) + 3):
        writers.turn()
    writers.write("pod-0", "job-0", 1)
    writers.turn()
    assert writers.age_s("pod-0") == 0
    assert writers.dropped[""]
