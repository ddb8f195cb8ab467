"""Kill batch workers at random and at each named step; nothing may be lost, doubled or dead-lettered.

    python -m workloads.library.tests.bench.batch_kills --kills 500

Workers are forked from this process, which holds no thread, so that a kill costs no interpreter start.
A trigger in the database notes every commit of a result: "stored once" is counted there, not believed.
"""

import itertools
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psycopg
from psycopg import Connection

from holdfast.contract.exit_codes import EXIT_COMPLETE
from holdfast.inference.predictor.proxy import ProcessPredictor
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.values import Value
from holdfast.inference.worker.settings import WorkerSettings
from holdfast.inference.worker.telemetry import Failpoint
from holdfast.runtime.shutdown import Shutdown
from workloads.library.tests.bench import result
from workloads.library.tests.bench.batch_harness import Bench, database, ended, forked
from workloads.library.tests.bench.batch_recorder import recorder

MICRO_BATCH = 8
# Jobs in turn: as shipped, predicted in a process of its own, and without that process.
MODES = ("shipped", "here")
ITEMS = 400
WORKERS = 3
KILLS_PER_JOB = 50
SETTINGS = WorkerSettings(micro_batch=MICRO_BATCH, lease_s=1.0, fill_s=0.002, pull_wait_s=0.1)
_AUDIT = """
CREATE TABLE audit (job text, item text, worker text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
$$ BEGIN INSERT INTO public.audit VALUES (NEW.job, NEW.item, NEW.worker); RETURN NEW; END $$;
CREATE TRIGGER noted AFTER INSERT OR UPDATE ON holdfast.result FOR EACH ROW
WHEN (NEW.status = 'done') EXECUTE FUNCTION note();
"""


@dataclass(kw_only=True)
class Outcome:
    kills: int = 0
    by_step: dict[str, int] = field(default_factory=dict[str, int])
    lost: int = 0
    duplicated: int = 0
    dead_lettered: int = 0
    different: int = 0
    worst_kill: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MODES, 0))
    """By mode: the items that one kill cost, predicted by the killed worker and not committed by it."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How one worker is to die: by itself at the n-th `step`, or from outside after `delay_s`."""

    step: Failpoint | None
    times: int = 1
    delay_s: float = 0.0


def main() -> None:
    o = result.options(__doc__, kills=500, seed=1)
    outcome = play(o.kills, seed=o.seed)
    result.ended(asdict(outcome), verdict(outcome, o.kills))


def play(kills: int, *, seed: int) -> Outcome:
    outcome, dice = Outcome(), random.Random(seed)
    with database("fsync=off") as bench:
        with bench.connection.transaction():
            bench.connection.execute(_AUDIT)
        expected = _uninterrupted(bench)
        per_job = min(KILLS_PER_JOB, -(-kills // len(MODES)))
        modes = itertools.cycle(MODES)
        while outcome.kills < kills:
            count = min(per_job, kills - outcome.kills)
            _one_job(bench, next(modes), dice, count, outcome, expected)
    return outcome


def _uninterrupted(bench: Bench) -> dict[str, str]:
    bench.fill("undisturbed", ITEMS)
    assert ended(_fork(bench, "undisturbed", None, "here")) == EXIT_COMPLETE
    return _values(bench.connection, "undisturbed")


def _one_job(
    bench: Bench, mode: str, dice: random.Random, kills: int, outcome: Outcome, expected: dict[str, str]
) -> None:
    job = f"killed-{outcome.kills}-{mode}"
    bench.fill(job, ITEMS)
    plans = [_plan(dice, outcome.kills + n) for n in range(kills)]
    living = {_fork(bench, job, plan, mode): plan for plan in plans[:WORKERS]}
    waiting = plans[WORKERS:]
    killed: set[int] = set()
    while living:
        pid, status = os.waitpid(-1, 0)
        plan, code = living.pop(pid), os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL:
            outcome.kills += 1
            killed.add(pid)
            name = plan.step.value if plan and plan.step else "random"
            outcome.by_step[name] = outcome.by_step.get(name, 0) + 1
        elif code != EXIT_COMPLETE:
            raise RuntimeError(f"a worker of {job} ended with {code}")
        if waiting:
            plan = waiting.pop(0)
            living[_fork(bench, job, plan, mode)] = plan
    assert ended(_fork(bench, job, None, mode)) == EXIT_COMPLETE
    _judge(bench, job, outcome, expected)
    outcome.worst_kill[mode] = max(outcome.worst_kill[mode], _worst_kill(bench, job, killed))


def _plan(dice: random.Random, n: int) -> Plan:
    """Steps and random moments in turn; the first of each step early, later ones anywhere."""
    if n % 2:
        return Plan(step=None, delay_s=dice.uniform(0.02, 0.15))
    steps = list(Failpoint)
    return Plan(step=steps[n // 2 % len(steps)], times=1 if n < 2 * len(steps) else dice.randint(1, 3))


def _fork(bench: Bench, job: str, plan: Plan | None, mode: str) -> int:
    return forked(lambda: _work(bench, job, plan, mode))


def _arm(plan: Plan | None) -> None:
    if plan is not None and plan.step is None:
        # The alarm's default action would be a clean end; this one is not to be caught.
        signal.signal(signal.SIGALRM, _kill_me)
        signal.setitimer(signal.ITIMER_REAL, plan.delay_s)


def _kill_me(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _work(bench: Bench, job: str, plan: Plan | None, mode: str) -> int:
    reached: Counter[Failpoint] = Counter()

    def at(step: Failpoint) -> None:
        reached[step] += 1
        if plan is not None and step == plan.step and reached[step] == plan.times:
            os.kill(os.getpid(), signal.SIGKILL)

    events = bench.log(job)
    with closing(_predictor(bench.folder / f"{job}.computed", events.process, plan, mode)) as predictor:
        return bench.run(job, predictor, SETTINGS, Shutdown(), events, at)


class _Here(ProcessPredictor):
    """Predicts in the worker itself."""

    def __init__(self, spec: PredictorSpec) -> None:
        super().__init__(spec, timeout_s=60.0)
        self._recorder = recorder(spec)
        self.configuration = self._recorder.configuration

    def load(self) -> None:
        self._recorder.load()

    def prepare(self, bodies: Sequence[bytes]) -> None: ...

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        return self._recorder.predict(bodies)


def _predictor(log: Path, worker: str, plan: Plan | None, mode: str) -> ProcessPredictor:
    """Random kills count from a loaded model where it is in a process: its start would outlast them."""
    name = "workloads.library.tests.bench.batch_recorder:recorder"
    spec = PredictorSpec(name=name, model=str(log), run=worker)
    made = ProcessPredictor(spec, timeout_s=60.0) if mode == "shipped" else _Here(spec)
    made.load()
    _arm(plan)
    return made


def verdict(outcome: Outcome, kills: int) -> dict[str, bool]:
    return {
        "kills": outcome.kills >= kills,
        "every_step_killed": all(outcome.by_step.get(step, 0) > 0 for step in (*Failpoint, "random")),
        "lost_0": outcome.lost == 0,
        "duplicated_0": outcome.duplicated == 0,
        "dead_lettered_0": outcome.dead_lettered == 0,
        "equal_to_uninterrupted": outcome.different == 0,
        # The one being predicted and the one being committed.
        "a_kill_costs_what_is_uncommitted": max(outcome.worst_kill.values()) <= 2 * MICRO_BATCH,
    }


GOALS = (*verdict(Outcome(), 0),)


def _values(connection: Connection, job: str) -> dict[str, str]:
    query = "SELECT item, value::text FROM holdfast.result WHERE job = %s AND status = 'done'"
    rows = connection.execute(query, (job,)).fetchall()
    connection.commit()
    return dict(rows)


def _judge(bench: Bench, job: str, outcome: Outcome, expected: dict[str, str]) -> None:
    connection = bench.connection
    values = _values(connection, job)
    committed = Counter(item for (item,) in connection.execute("SELECT item FROM audit WHERE job = %s", (job,)))
    dead_letters = connection.execute("SELECT count(*) FROM holdfast.dead_letter WHERE job = %s", (job,)).fetchone()
    assert dead_letters is not None
    outcome.lost += ITEMS - len(values)
    outcome.duplicated += sum(count - 1 for count in committed.values())
    outcome.dead_lettered += dead_letters[0]
    outcome.different += sum(values.get(item) != value for item, value in expected.items())


def _worst_kill(bench: Bench, job: str, killed: set[int]) -> int:
    """Of the workers killed: the most items that one had predicted and not committed."""
    computed = Counter(line.split()[0] for line in (bench.folder / f"{job}.computed").read_text().splitlines())
    query = "SELECT worker, count(*) FROM audit WHERE job = %s GROUP BY worker"
    rows = bench.connection.execute(query, (job,)).fetchall()
    bench.connection.commit()
    stored = dict(rows)
    # A process is named HOST-PID-RANDOM.
    return max((n - stored.get(w, 0) for w, n in computed.items() if int(w.split("-")[-2]) in killed), default=0)


if __name__ == "__main__":
    assert psycopg  # imported before the first fork
    main()
