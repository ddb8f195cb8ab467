"""Runs `holdfast demo`: training, batch and serving under evictions on one machine, with a verdict.

A trainer and a batch of workers run undisturbed, then under the same seeded evictions; the
trainer's naive twin gets the same. Servers then answer while those on Spot get their notice. The
verdict is computed from stored results, never from what the runs report about themselves.

Of its parts, `checkpoint` only trains, and needs neither a database nor a proxy.
"""

import json
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from holdfast.drill.console import stage
from holdfast.drill.errors import DrillError
from holdfast.drill.events import run_command
from holdfast.drill.plan import DrillWork
from holdfast.drill.pods import own_processes
from holdfast.drill.store import lock_folder, read_program
from holdfast.drill.targets.local import HOLDFAST, Eviction, make_schedule
from holdfast.drill.targets.local_batch import LocalBatch, database, enqueue, export
from holdfast.drill.targets.local_serving import LocalServing
from holdfast.drill.targets.local_training import LocalTraining
from holdfast.report.objectives import ObjectiveVerdict, objectives
from holdfast.support.errors import InputError
from holdfast.support.tables import print_sentences
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS

MIN_DOCUMENT_BYTES = 200
MAX_DOCUMENT_BYTES = 20_000
BASE = 2  # servers on demand
OVERFLOW = 2  # servers on Spot
REQUESTS_PER_S = 50.0
_PROGRAM = "demo"


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
    """Every round evicts all servers on Spot at once."""


CHECKPOINT_SIZE = Size(ranks=1, steps=90, save_every=10, training_evictions=2)


@dataclass(frozen=True, kw_only=True)
class Demo:
    out: Path
    seed: int
    size: Size
    console: Console
    owner: str


def run_demo(out: Path, *, seed: int, size: Size | None = None) -> int:
    """Runs the whole demo and returns its exit code."""
    demo = _make_demo(out, seed, size or Size())
    try:
        with lock_folder(out, _PROGRAM), own_processes(demo.owner):
            _clear(out)
            summary = _play(
                demo,
                training=train_thrice,
                batch=score_twice,
                serving=serve_under_evictions,
            )
            write_report(demo)
    except DrillError as error:
        return _report_failure(demo, error)
    return judge(demo, summary)


def run_checkpoint_part(out: Path, *, seed: int, size: Size = CHECKPOINT_SIZE) -> int:
    """Trains twice, the second time under kills, compares the results, and returns the exit
    code.
    """
    demo = _make_demo(out, seed, size)
    try:
        with lock_folder(out, _PROGRAM), own_processes(demo.owner):
            _clear(out)
            summary = _play(demo, training=train_twice)
    except DrillError as error:
        return _report_failure(demo, error)
    return judge_training(demo, summary)


def _make_demo(out: Path, seed: int, size: Size) -> Demo:
    _require_own_folder(out)
    return Demo(
        out=out,
        seed=seed,
        size=size,
        console=Console(stderr=True),
        owner=f"demo:{out}",
    )


def _play(demo: Demo, **acts: Callable[[Demo], dict[str, Any]]) -> dict[str, Any]:
    """Plays the acts in their order, writes their summary, and returns it."""
    start = time.monotonic()
    results = {name: play(demo) for name, play in acts.items()}
    summary = {
        "schema": "holdfast.demo/1",
        "seed": demo.seed,
        "seconds": round(time.monotonic() - start, 1),
        **results,
    }
    text = json.dumps(summary, indent=2)
    (demo.out / "summary.json").write_text(f"{text}\n")
    return summary


def _report_failure(demo: Demo, error: DrillError) -> int:
    # The text ends with the last lines of a log, whose brackets are not markup.
    demo.console.print(
        f"demo failed:  {error}",
        style="red",
        markup=False,
        highlight=False,
    )
    return EXIT_FINDINGS


def _require_own_folder(out: Path) -> None:
    """Raises InputError if the folder holds files of something other than a demo."""
    if not out.is_dir():
        return
    program = read_program(out)
    is_of_earlier_version = program == "" and (out / "events").is_dir()
    # Everything in it is deleted, and the folder of drills has such a lock too.
    if program == _PROGRAM or is_of_earlier_version:
        return
    if any(out.iterdir()):
        raise InputError(
            "the folder contains something else",
            got=out,
            allowed="a new folder, an empty one, or the folder of an earlier demo",
            fix="--out out/demo",
        )


def _clear(out: Path) -> None:
    for entry in out.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != ".lock":
            entry.unlink()
    for name in ("events", "logs"):
        (out / name).mkdir()


def train_thrice(demo: Demo) -> dict[str, Any]:
    """Trains undisturbed, evicted, and as the naive twin under the same evictions."""
    summary = train_twice(demo)
    schedule = _schedule_training(demo)
    twin = _train(demo, "train-naive", "naive twin, same evictions", schedule, DrillWork.NAIVE)
    summary["naive"] = {
        **_summarize_training(twin, summary["digest"]),
        "false_completion_steps": twin.false_ends,
    }
    return summary


def train_twice(demo: Demo) -> dict[str, Any]:
    """Trains undisturbed and evicted."""
    size = demo.size
    schedule = _schedule_training(demo)
    baseline = _train(demo, "train-baseline", "undisturbed", ())
    evicted = _train(demo, "train-evicted", f"{len(schedule)} evictions", schedule)
    return {
        "steps": size.steps,
        "ranks": size.ranks,
        "save_every": size.save_every,
        "evictions": len(evicted.events.of("evict")),
        "digest": baseline.digest,
        **_summarize_training(evicted, baseline.digest),
    }


def _schedule_training(demo: Demo) -> list[Eviction]:
    size = demo.size
    return make_schedule(
        seed=demo.seed,
        count=size.training_evictions,
        total=size.steps,
        first=size.save_every,
    )


def _train(
    demo: Demo,
    job: str,
    title: str,
    schedule: Sequence[Eviction],
    work: DrillWork = DrillWork.TRAINER,
) -> LocalTraining:
    flags = {
        "--checkpoints": demo.out / "checkpoints",
        "--ranks": demo.size.ranks,
        "--device": "auto",
    }
    run = LocalTraining(
        demo.out,
        work,
        save_every=demo.size.save_every,
        owner=demo.owner,
        job=job,
        steps=demo.size.steps,
        seed=demo.seed,
        extra_flags=flags,
    )
    with stage(demo.console, "train", title) as log:
        run.play(schedule, log)
    return run


def _summarize_training(run: LocalTraining, digest: str | None) -> dict[str, Any]:
    """Compares a run with the digest of the undisturbed one."""
    return {
        "bit_exact": bool(digest) and digest == run.digest,
        "lost_steps": run.summary.lost,
        "recovery_seconds": list(run.summary.recovery_times_s),
        "false_completions": len(run.false_ends),
    }


def score_twice(demo: Demo) -> dict[str, Any]:
    """Scores the same documents undisturbed and under evictions, and compares them row by row."""
    source = demo.out / "documents"
    size = demo.size
    count = copy_documents(source, size.documents)
    schedule = make_schedule(
        seed=demo.seed + 1,
        count=size.batch_evictions,
        total=count,
        first=count // 12,
        victims=size.workers,
    )
    with database(demo.out, demo.owner) as uri:
        _, baseline_rows = _score(demo, "batch-baseline", uri, source, count, ())
        evicted, rows = _score(demo, "batch-evicted", uri, source, count, schedule)
    items = {row["item"] for row in rows}
    return {
        "documents": count,
        "workers": size.workers,
        "kills": evicted.kills,
        "lost": count - len(items),
        "duplicated": len(rows) - len(items),
        "rewritten": evicted.count_rows() - count,
        "same_scores": len(baseline_rows) == count and baseline_rows == rows,
    }


def _score(
    demo: Demo,
    job: str,
    uri: str,
    source: Path,
    count: int,
    schedule: Sequence[Eviction],
) -> tuple[LocalBatch, list[Any]]:
    """Scores the documents of `source` as one job; returns its run and the stored rows."""
    model = ("--checkpoints", str(demo.out / "checkpoints"), "--run", "train-evicted")
    run = LocalBatch(
        demo.out,
        workers=demo.size.workers,
        items=count,
        owner=demo.owner,
        job=job,
        uri=uri,
        worker=(*model, "--set", "micro_batch=8", "--set", "lease_s=5"),
    )
    title = f"{demo.size.workers} workers, {len(schedule)} evictions"
    with stage(demo.console, "batch", title) as log:
        enqueue(job, uri, source)
        run.play(schedule, log)
        rows = export(job, uri, demo.out / f"{job}.jsonl")
    return run, rows


def copy_documents(target: Path, limit: int) -> int:
    """Copies up to `limit` files of the standard library into one folder; returns their number."""
    target.mkdir()
    source = Path(sysconfig.get_path("stdlib"))
    count = 0
    for file in sorted(source.rglob("*.py")):
        if not _is_document(file):
            continue
        count += 1
        name = "_".join(file.relative_to(source).parts)[-80:]
        shutil.copyfile(file, target / f"{count:05d}_{name}")
        if count == limit:
            break
    return count


def _is_document(file: Path) -> bool:
    if not file.is_file() or "site-packages" in file.parts:
        return False
    return MIN_DOCUMENT_BYTES < file.stat().st_size < MAX_DOCUMENT_BYTES


def serve_under_evictions(demo: Demo) -> dict[str, Any]:
    """Sends requests at a fixed rate while the servers on Spot get their notice."""
    total = demo.size.serving_rounds * OVERFLOW
    title = f"{BASE} servers on demand, {OVERFLOW} on Spot, {total} evictions"
    serving = LocalServing(
        demo.out / "serving",
        replicas=BASE + OVERFLOW,
        per_s=REQUESTS_PER_S,
        owner=demo.owner,
    )
    with stage(demo.console, "serve", title) as log:
        counts = serving.play(demo.size.serving_rounds, BASE, log)
        log(
            f"{counts['requests']:,} requests: {counts['failed']} failed, {counts['shed']} refused"
            f" for load, {counts['retries']} retried by the proxy, 99 of 100 within"
            f" {counts['p99_ms']} ms"
        )
    return counts


def write_report(demo: Demo) -> None:
    out = demo.out
    command = [
        *HOLDFAST,
        "report",
        "--events",
        str(out / "events"),
        "--summary",
        str(out / "summary.json"),
        "--out",
        str(out / "report.html"),
    ]
    with stage(demo.console, "report", "write report.html"):
        # It exits with 1 if an objective is broken, which `judge` reports.
        run_command(command, done=(EXIT_DONE, EXIT_FINDINGS))


def judge(demo: Demo, summary: dict[str, Any]) -> int:
    """Prints the verdict by the objectives of the report, and returns the exit code."""
    page = f"{os.path.relpath(demo.out)}/report.html"
    broken = _find_broken(summary)
    if broken:
        print_sentences(f"demo broken: {'; '.join(broken)}; see {page}")
        return EXIT_FINDINGS
    training = summary["training"]
    batch = summary["batch"]
    serving = summary["serving"]
    twin = describe_twin(training["naive"], training["steps"])
    print_sentences(
        f"demo ok: training bit-exact after {training['evictions']} evictions,"
        f" {training['lost_steps']} steps done again (naive twin: {twin});"
        f" {batch['documents']} documents scored once each through {batch['kills']} evictions;"
        f" {serving['requests']:,} requests, {serving['failed']} failed and {serving['shed']}"
        f" refused through {serving['evictions']} evictions; {summary['seconds']:.0f} s; {page}"
    )
    return EXIT_DONE


def judge_training(demo: Demo, summary: dict[str, Any]) -> int:
    """Prints the verdict of the part `checkpoint`, and returns the exit code."""
    broken = _find_broken(summary)
    folder = os.path.relpath(demo.out)
    if broken:
        print_sentences(f"demo broken: {'; '.join(broken)}; see {folder}/logs")
        return EXIT_FINDINGS
    training = summary["training"]
    print_sentences(
        f"demo ok: training was evicted {training['evictions']} times, resumed from its"
        f" checkpoints with {training['lost_steps']} steps done again, and ended"
        f" after step {training['steps']} with the weights of an undisturbed run, to the last bit;"
        f" {summary['seconds']:.0f} s"
    )
    print(f"Next: holdfast checkpoints list {folder}/checkpoints", file=sys.stderr)
    return EXIT_DONE


def _find_broken(summary: dict[str, Any]) -> list[str]:
    """Returns the goals of the report that do not hold."""
    goals = objectives((), summary)
    return [goal.goal for goal in goals if goal.verdict is not ObjectiveVerdict.HELD]


def describe_twin(twin: dict[str, Any], steps: int) -> str:
    """Describes the outcome of the naive twin in a few words."""
    clauses: list[str] = []
    false_completions = twin["false_completion_steps"]
    if false_completions:
        clauses.append(f"called complete at step {false_completions[0]} of {steps}")
    clauses.append(f"{twin['lost_steps']} steps done again")
    clauses.append("same result" if twin["bit_exact"] else "another result")
    return ", ".join(clauses)
