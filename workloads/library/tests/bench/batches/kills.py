"""Kills of batch workers, at random and at each named step.

    python -m workloads.library.tests.bench.batches.kills --kills 500

No item may be lost, stored twice or dead-lettered. Workers are forked from this process, which
holds no thread, so that a kill costs no import of the library. A trigger in the database notes
every commit of a result, so that duplicates are counted and not assumed away.
"""

import os
import random
import signal
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field

import psycopg

from holdfast.inference.predictor.predictor_client import ProcessPredictor
from holdfast.inference.predictor.spec import PredictorSpec
from holdfast.inference.results.connect import connect, open_pool
from holdfast.inference.worker.settings import WorkerSettings
from holdfast.inference.worker.telemetry import Failpoint
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE
from workloads.library.tests.bench import result
from workloads.library.tests.bench.batches.harness import Bench, database
from workloads.library.tests.bench.batches.predictors import Recording
from workloads.library.tests.inference.harness import Harness, expect_rows, items
from workloads.library.tests.training.warm import Fork

MICRO_BATCH = 8
RECORDING = f"{Recording.__module__}:{Recording.__name__}"
ITEMS = 400
WORKERS = 3
KILLS_PER_JOB = 50
SETTINGS = WorkerSettings(
    micro_batch=MICRO_BATCH,
    lease_s=1.0,
    fill_s=0.002,
    pull_wait_s=0.1,
)
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
    by_step: Counter[str] = field(default_factory=Counter[str])
    lost: int = 0
    duplicated: int = 0
    dead_lettered: int = 0
    different: int = 0
    worst_kill: int = 0
    """Most items that one kill cost: predicted for the killed worker and not committed by it."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The death of one worker: by itself at the n-th `step`, or after `delay_s`."""

    step: Failpoint | None
    times: int = 1
    delay_s: float = 0.0


def main() -> None:
    arguments = result.options(__doc__, kills=500, seed=1)
    outcome = Outcome()
    rng = random.Random(arguments.seed)
    with database("fsync=off") as bench:
        bench.rows(_AUDIT)
        while outcome.kills < arguments.kills:
            kills = min(KILLS_PER_JOB, arguments.kills - outcome.kills)
            _run_job(bench, rng, kills, outcome)
    result.finish(vars(outcome), verdict(outcome, arguments.kills))


def _run_job(
    bench: Bench,
    rng: random.Random,
    kills: int,
    outcome: Outcome,
) -> None:
    job = f"killed-{outcome.kills}"
    bench.fill(job, ITEMS)
    waiting: list[Plan | None] = []
    for number in range(kills):
        waiting.append(_plan(rng, outcome.kills + number))
    living: dict[Fork, Plan | None] = {}
    killed = set[int]()
    while waiting or living:
        while waiting and len(living) < WORKERS:
            plan = waiting.pop(0)
            living[Fork(lambda plan=plan: _work(bench, job, plan))] = plan
        for fork in [worker for worker in living if worker.poll() is not None]:
            plan = living.pop(fork)
            if fork.returncode == -signal.SIGKILL:
                outcome.kills += 1
                killed.add(fork.pid)
                step = plan.step.value if plan and plan.step else "random"
                outcome.by_step[step] += 1
            elif fork.returncode != EXIT_COMPLETE:
                raise RuntimeError(f"a worker of {job} ended with {fork.returncode}")
        time.sleep(0.005)
    assert Fork(lambda: _work(bench, job, None)).wait() == EXIT_COMPLETE
    _judge(bench, job, killed, outcome)


def _plan(rng: random.Random, n: int) -> Plan:
    """Plans steps and random moments in turn; the first kill of each step comes early."""
    if n % 2:
        return Plan(step=None, delay_s=rng.uniform(0.02, 0.15))
    steps = list(Failpoint)
    times = 1 if n < 2 * len(steps) else rng.randint(1, 3)
    return Plan(step=steps[n // 2 % len(steps)], times=times)


def _kill_me(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _work(bench: Bench, job: str, plan: Plan | None) -> None:
    reached = Counter[Failpoint]()

    def meet_step(step: Failpoint) -> None:
        reached[step] += 1
        if plan and (step, reached[step]) == (plan.step, plan.times):
            _kill_me()

    spec = PredictorSpec(
        name=RECORDING,
        model=str(bench.folder / f"{job}.computed"),
        run=str(os.getpid()),
    )
    with (
        closing(ProcessPredictor(spec, timeout_s=60.0)) as predictor,
        connect(bench.uri) as connection,
        open_pool(bench.uri) as pool,
    ):
        predictor.load()
        if plan and not plan.step:  # from a loaded model: its start would outlast the delay
            # A worker may catch SIGALRM, but not the SIGKILL that _kill_me sends.
            signal.signal(signal.SIGALRM, _kill_me)
            signal.setitimer(signal.ITIMER_REAL, plan.delay_s)
        events = bench.folder / f"{job}.jsonl"
        harness = Harness(
            pool=pool,
            connection=connection,
            job=job,
            events=events,
            settings=SETTINGS,
        )
        assert harness.worker(predictor, at=meet_step).run() == EXIT_COMPLETE


def verdict(outcome: Outcome, kills: int) -> dict[str, bool]:
    return {
        "kills": outcome.kills >= kills,
        "every_step_killed": all(outcome.by_step[step] for step in (*Failpoint, "random")),
        "lost_0": outcome.lost == 0,
        "duplicated_0": outcome.duplicated == 0,
        "dead_lettered_0": outcome.dead_lettered == 0,
        "equal_to_uninterrupted": outcome.different == 0,
        # The micro-batch being predicted and the one being committed.
        "a_kill_costs_what_is_uncommitted": outcome.worst_kill <= 2 * MICRO_BATCH,
    }


GOALS = (*verdict(Outcome(), 0),)


def _judge(bench: Bench, job: str, killed: set[int], outcome: Outcome) -> None:
    results = "SELECT item, value FROM holdfast.result WHERE job = %s AND status = 'done'"
    values = dict(bench.rows(results, job))
    commits = bench.rows("SELECT item, worker FROM audit WHERE job = %s", job)
    expectation = expect_rows(items(job, ITEMS))
    outcome.lost += ITEMS - len(values)
    committed_items: set[object] = set()
    stored = Counter[int]()
    for item, worker in commits:
        committed_items.add(item)
        stored[_worker_pid(worker)] += 1
    outcome.duplicated += len(commits) - len(committed_items)
    outcome.dead_lettered += len(
        bench.rows("SELECT item FROM holdfast.dead_letter WHERE job = %s", job)
    )
    for item, (_, value) in expectation.items():
        outcome.different += values.get(item) != value
    predictions = (bench.folder / f"{job}.computed").read_text().splitlines()
    predicted = Counter(map(int, predictions))
    for pid in killed:
        outcome.worst_kill = max(outcome.worst_kill, predicted[pid] - stored[pid])


def _worker_pid(worker: str) -> int:
    """Returns the process id in a worker's name, which is JOB-wPID-NUMBER."""
    return int(worker.rpartition("-w")[2].partition("-")[0])


if __name__ == "__main__":
    assert psycopg  # imported before the first fork
    main()
