"""`holdfast demo`: the whole promise on one machine, judged.

A trainer and a batch of workers run undisturbed, then under the same seeded evictions; the
trainer's naive twin gets the same. Servers then answer while those on Spot get their notice. The
verdict is computed from what the runs left behind, never from what they say.
"""

import json
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from holdfast.drill.console import stage
from holdfast.drill.errors import DrillError
from holdfast.drill.events import completed
from holdfast.drill.plan import DrillWork
from holdfast.drill.pods import owned
from holdfast.drill.store import alone
from holdfast.drill.targets.local import HOLDFAST, Eviction, evictions
from holdfast.drill.targets.local_batch import LocalBatch, database, enqueue, export
from holdfast.drill.targets.local_serving import LocalServing
from holdfast.drill.targets.local_training import LocalTraining
from holdfast.report.objectives import ObjectiveVerdict, objectives
from holdfast.support.errors import InputError
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS

MAX_DOCUMENT_BYTES = 20_000
BASE = 2  # servers on demand, and on Spot
OVERFLOW = 2
REQUESTS_PER_S = 50.0


@dataclass(frozen=True, kw_only=True)
class Size:
    ranks: int = 2
    steps: int = 240
    save_every: int = 20
    training_evictions: int = 6
    workers: int = 4
    batch_evictions: int = 10
    documents: int = 480
    serving_rounds: int = 2
    """In each all servers on Spot go at once."""


@dataclass(frozen=True, kw_only=True)
class Demo:
    out: Path
    seed: int
    size: Size
    console: Console
    owner: str


def run_demo(out: Path, *, seed: int, size: Size | None = None) -> int:
    """The demo from begin to end; its exit code."""
    _require_own(out)
    console = Console(stderr=True)
    demo = Demo(
        out=out,
        seed=seed,
        size=size or Size(),
        console=console,
        owner=f"demo:{out}",
    )
    began = time.monotonic()
    try:
        with alone(out, "demo"), owned(demo.owner):
            _clear(out)
            show_platform(demo)
            acts = {
                "training": train_thrice(demo),
                "batch": score_twice(demo),
                "serving": serve_under_evictions(demo),
            }
            seconds = round(time.monotonic() - began, 1)
            summary = {
                "schema": "holdfast.demo/1",
                "seed": seed,
                "seconds": seconds,
                **acts,
            }
            (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
            report(demo)
    except DrillError as error:
        # The text ends with a log's last lines, whose brackets are no markup.
        console.print(
            f"demo failed:  {error}",
            style="red",
            markup=False,
            highlight=False,
        )
        return EXIT_FINDINGS
    return verdict(demo, summary)


def _require_own(out: Path) -> None:
    """Removes what an earlier demo left, and nothing else."""
    if out.is_dir() and any(out.iterdir()) and not (out / ".lock").exists():
        allowed = "none yet, an empty one or that of a demo before"
        raise InputError(
            "the folder contains something else",
            got=out,
            allowed=allowed,
            fix="--out out/demo",
        )


def _clear(out: Path) -> None:
    for entry in out.iterdir():
        if entry.name != ".lock":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for name in ("events", "logs"):
        (out / name).mkdir()


def show_platform(demo: Demo) -> None:
    """(a) What would be deployed, where the platform is at hand, and what belongs where."""
    infra = (sys.executable, "-m", "infra")
    if find_spec("infra"):
        with stage(demo.console, "platform", "synthesise the example environment"):
            completed(
                [
                    *infra,
                    "plan",
                    "example",
                    "--synth",
                ]
            )
        print(completed([*infra, "outputs", "example"]), flush=True)
    print(completed([*HOLDFAST, "place"]), flush=True)


def train_thrice(demo: Demo) -> dict[str, Any]:
    """(b) Undisturbed, evicted, and the naive twin under the same evictions."""
    size = demo.size
    schedule = evictions(
        seed=demo.seed,
        count=size.training_evictions,
        total=size.steps,
        first=size.save_every,
    )
    baseline = _trained(demo, "train-baseline", "undisturbed", ())
    evicted = _trained(demo, "train-evicted", f"{len(schedule)} evictions", schedule)
    naive = _trained(demo, "train-naive", "naive twin, same evictions", schedule, DrillWork.NAIVE)
    return {
        "steps": size.steps,
        "ranks": size.ranks,
        "save_every": size.save_every,
        "evictions": len(evicted.events.of("evict")),
        "digest": baseline.digest,
        **_outcome(evicted, baseline),
        "naive": {**_outcome(naive, baseline), "false_completion_steps": naive.false_ends},
    }


def _trained(
    demo: Demo,
    job: str,
    what: str,
    schedule: Sequence[Eviction],
    work: DrillWork = DrillWork.TRAINER,
) -> LocalTraining:
    size, flags = (
        demo.size,
        {
            "--checkpoints": demo.out / "checkpoints",
            "--ranks": demo.size.ranks,
            "--device": "auto",
        },
    )
    run = LocalTraining(
        demo.out,
        work,
        save_every=size.save_every,
        owner=demo.owner,
        job=job,
        steps=size.steps,
        seed=demo.seed,
        more=flags,
    )
    with stage(demo.console, "train", what) as log:
        run.play(schedule, log)
    return run


def _outcome(run: LocalTraining, baseline: LocalTraining) -> dict[str, Any]:
    return {
        "bit_exact": bool(baseline.digest) and baseline.digest == run.digest,
        "lost_steps": run.summary.lost,
        "recovery_seconds": list(run.summary.recovered_after_s),
        "false_completions": len(run.false_ends),
    }


def score_twice(demo: Demo) -> dict[str, Any]:
    """(c) The same documents undisturbed and under evictions, compared row by row."""
    source = demo.out / "documents"
    size = demo.size
    count = documents(source, size.documents)
    schedule = evictions(
        seed=demo.seed + 1,
        count=size.batch_evictions,
        total=count,
        first=count // 12,
        victims=size.workers,
    )
    model = ("--checkpoints", str(demo.out / "checkpoints"), "--run", "train-evicted")
    worker = (*model, "--set", "micro_batch=8", "--set", "lease_s=5")
    rows: list[list[Any]] = []
    runs: list[LocalBatch] = []
    with database(demo.out, demo.owner) as uri:
        for job, planned in (("batch-baseline", []), ("batch-evicted", schedule)):
            run = LocalBatch(
                demo.out,
                workers=size.workers,
                items=count,
                owner=demo.owner,
                job=job,
                uri=uri,
                worker=worker,
            )
            with stage(
                demo.console, "batch", f"{size.workers} workers, {len(planned)} evictions"
            ) as log:
                enqueue(job, uri, source)
                run.play(planned, log)
                rows.append(export(job, uri, demo.out / f"{job}.jsonl"))
            runs.append(run)
    (expected, got), evicted = rows, runs[1]
    return {
        "documents": count,
        "workers": size.workers,
        "kills": evicted.kills,
        "lost": count - len({row["item"] for row in got}),
        "duplicated": len(got) - len({row["item"] for row in got}),
        "rewritten": evicted.stored() - count,
        "same_scores": len(expected) == count and expected == got,
    }


def documents(target: Path, limit: int) -> int:
    """Up to `limit` of Python's own sources, copied flat; how many."""
    target.mkdir()
    source = Path(sysconfig.get_path("stdlib"))
    files = (
        f for f in sorted(source.rglob("*.py")) if f.is_file() and "site-packages" not in f.parts
    )
    fitting = (f for f in files if 200 < f.stat().st_size < MAX_DOCUMENT_BYTES)
    count = 0
    for count, file in enumerate(fitting, start=1):
        name = "_".join(file.relative_to(source).parts)
        shutil.copyfile(file, target / f"{count:05d}_{name[-80:]}")
        if count == limit:
            break
    return count


def serve_under_evictions(demo: Demo) -> dict[str, Any]:
    """(d) Requests at a fixed rate while the servers on Spot get their notice."""
    total = demo.size.serving_rounds * OVERFLOW
    what = f"{BASE} servers on demand, {OVERFLOW} on Spot, {total} evictions"
    serving = LocalServing(
        demo.out / "serving",
        replicas=BASE + OVERFLOW,
        per_s=REQUESTS_PER_S,
        owner=demo.owner,
    )
    with stage(demo.console, "serve", what) as log:
        served = serving.play(demo.size.serving_rounds, BASE, log)
        log(
            f"{served['requests']:,} requests: {served['failed']} failed, {served['shed']} refused"
            f" for load, {served['retries']} tried again by the proxy, 99 of 100 within"
            f" {served['p99_ms']} ms"
        )
    return served


def report(demo: Demo) -> None:
    with stage(demo.console, "report", "write report.html"):
        files = {
            "--events": "events",
            "--summary": "summary.json",
            "--out": "report.html",
        }
        options = []
        for option, name in files.items():
            for word in (option, str(demo.out / name)):
                options.append(word)
        # Its exit 1 says that an objective is broken, which the verdict reports.
        completed([*HOLDFAST, "report", *options], done=(EXIT_DONE, EXIT_FINDINGS))


def verdict(demo: Demo, summary: dict[str, Any]) -> int:
    """The last line, by the objectives of the report; one that is not met is named."""
    page = f"{os.path.relpath(demo.out)}/report.html"
    missed = [
        each.goal for each in objectives((), summary) if each.verdict is not ObjectiveVerdict.HELD
    ]
    if missed:
        print(f"demo broken: {'; '.join(missed)}; see {page}")
        return EXIT_FINDINGS
    training, batch, serving = (summary[act] for act in ("training", "batch", "serving"))
    print(
        f"demo ok: training bit-exact after {training['evictions']} evictions,"
        f" {training['lost_steps']} steps done again (naive twin:"
        f" {twin_outcome(training['naive'], training['steps'])}); {batch['documents']} documents"
        f" scored once each through {batch['kills']} evictions; {serving['requests']:,} requests,"
        f" {serving['failed']} failed and {serving['shed']} refused through {serving['evictions']}"
        f" evictions; {summary['seconds']:.0f} s; {page}"
    )
    return EXIT_DONE


def twin_outcome(naive: dict[str, Any], steps: int) -> str:
    """What became of the twin, in a few words."""
    early = naive["false_completion_steps"]
    clauses = [f"called complete at step {early[0]} of {steps}"] if early else []
    clauses += [
        f"{naive['lost_steps']} steps done again",
        "same result" if naive["bit_exact"] else "another result",
    ]
    return ", ".join(clauses)
