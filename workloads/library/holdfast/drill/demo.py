"""`make demo`: the whole promise on one machine, judged.

A trainer and a batch of workers run undisturbed, then under the same seeded evictions; beside the trainer runs its
naive twin. Servers then answer while those on Spot are taken away. The verdict is computed from what the runs left
behind, never from what they say.
"""

import json
import os
import shutil
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from holdfast.contract.errors import InputError
from holdfast.contract.exit_codes import EXIT_DONE, EXIT_FINDINGS
from holdfast.contract.lifecycle import DEFAULT_WINDOW
from holdfast.drill.batch import BatchRun, database, export
from holdfast.drill.pods import Pod, owned
from holdfast.drill.schedule import evictions
from holdfast.drill.serving.act import BASE, OVERFLOW, Served, serve
from holdfast.drill.stage import Stage, stage
from holdfast.drill.store import alone
from holdfast.drill.training import Run, completed
from holdfast.drill.waiting import DrillError

MAX_DOCUMENT_BYTES = 20_000


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
    """In each all servers on Spot go at once; 0: nothing is served."""


@dataclass(frozen=True, kw_only=True)
class Demo:
    out: Path
    seed: int
    data: Path | None
    size: Size
    console: Console
    owner: str

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", *arguments]


def run_demo(out: Path, *, seed: int, data: Path | None, size: Size | None = None) -> int:
    """The demo from begin to end; its exit code."""
    _require_own(out)
    console = Console(stderr=True)
    demo = Demo(out=out, seed=seed, data=data, size=size or Size(), console=console, owner=f"demo:{out}")
    began = time.monotonic()
    try:
        with alone(out, "demo"), owned(demo.owner):
            fresh(out)
            show_platform(demo)
            training = train_thrice(demo)
            batch = score_twice(demo)
            serving = serve_under_evictions(demo)
            summary = {
                "schema": "holdfast.demo/1",
                "seed": seed,
                "seconds": round(time.monotonic() - began, 1),
                "training": training,
                "batch": batch,
            } | ({"serving": serving.as_json()} if serving else {})
            (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
            report(demo)
    except DrillError as error:
        # The text ends with a log's last lines, whose brackets are no markup.
        console.print(f"demo failed: {error}", style="red", markup=False, highlight=False)
        return EXIT_FINDINGS
    return verdict(demo, summary)


def _require_own(out: Path) -> None:
    """All that an earlier demo left is removed; what is somebody else's never."""
    if out.is_dir() and any(out.iterdir()) and not (out / ".lock").exists():
        raise InputError("the folder holds something else", got=out, allowed="none yet, an empty one or that of a demo before", fix="--out out/demo")  # fmt: skip


def fresh(out: Path) -> None:
    for entry in out.iterdir():
        if entry.name == ".lock":
            continue
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for name in ("events", "logs"):
        (out / name).mkdir()


def show_platform(demo: Demo) -> None:
    """(a) What would be deployed, and what belongs where."""
    with stage(demo.console, "platform", "synthesise the example environment"):
        completed(demo.command("infra", "synth", "example"))
    for verb in (("pools", "example"), ("matrix",)):
        print(completed(demo.command("infra", *verb)), flush=True)


def train_thrice(demo: Demo) -> dict[str, Any]:
    """(b) Undisturbed, evicted, and the naive twin under the same evictions."""
    schedule = evictions(
        seed=demo.seed, count=demo.size.training_evictions, total=demo.size.steps, first=demo.size.save_every
    )
    with stage(demo.console, "train", "undisturbed", total=demo.size.steps) as bar:
        baseline = training_run(demo, "train-baseline", bar)
        baseline.run([])
    with stage(demo.console, "train", f"{len(schedule)} evictions", total=demo.size.steps) as bar:
        evicted = training_run(demo, "train-evicted", bar)
        evicted.run(schedule)
    with stage(demo.console, "train", "naive twin, same evictions", total=demo.size.steps) as bar:
        naive = training_run(demo, "train-naive", bar, module=("holdfast.training.naive",))
        naive.run(schedule)
    return {
        "steps": demo.size.steps,
        "ranks": demo.size.ranks,
        "save_every": demo.size.save_every,
        "evictions": len(evicted.events.of("evict")),
        "bit_exact": bool(baseline.digest) and baseline.digest == evicted.digest,
        "digest": baseline.digest,
        "lost_steps": evicted.summary.lost,
        "recovery_seconds": list(evicted.summary.recovered_after_s),
        "false_completions": len(evicted.false_completions),
        "naive": {
            "bit_exact": baseline.digest == naive.digest,
            "lost_steps": naive.summary.lost,
            "recovery_seconds": list(naive.summary.recovered_after_s),
            "false_completions": len(naive.false_completions),
            "false_completion_steps": naive.false_completions,
        },
    }


def training_run(demo: Demo, job: str, bar: Stage, module: tuple[str, ...] = ("holdfast", "train", "run")) -> Run:
    def launch(attempt: int, log: Path) -> Pod:
        flags = {
            "--checkpoints": demo.out / "checkpoints", "--run": job, "--ranks": demo.size.ranks, "--steps": demo.size.steps,
            "--every": demo.size.save_every, "--seed": demo.seed, "--window": DEFAULT_WINDOW.pod_s, "--report-every": 1,
            "--events": demo.out / "events" / f"{job}.jsonl",
        }  # fmt: skip
        if demo.data:
            flags["--data"] = demo.data
        arguments = [str(argument) for flag in flags.items() for argument in flag]
        return Pod(demo.command(*module, *arguments), log=log, owner=demo.owner, env={"HOLDFAST_ATTEMPT": str(attempt)})

    return Run(
        job=job,
        steps=demo.size.steps,
        window_s=DEFAULT_WINDOW.pod_s,
        folder=demo.out,
        launch=launch,
        log=bar.log,
        progress=bar.at,
    )


def score_twice(demo: Demo) -> dict[str, Any]:
    """(c) The same documents undisturbed and under evictions, compared row by row."""
    source = demo.out / "documents"
    count = documents(demo.data or Path(sysconfig.get_path("stdlib")), source, demo.size.documents)
    schedule = evictions(
        seed=demo.seed + 1, count=demo.size.batch_evictions, total=count, first=count // 12, victims=demo.size.workers
    )
    rows: dict[str, list[Any]] = {}
    runs: dict[str, BatchRun] = {}
    with database(demo.out, demo.owner) as uri:
        for job, planned in (("batch-baseline", []), ("batch-evicted", schedule)):
            with stage(
                demo.console, "batch", f"{demo.size.workers} workers, {len(planned)} evictions", total=count
            ) as bar:
                completed(demo.command("holdfast", "batch", "enqueue", job, "--database", uri, "--source", str(source)))
                runs[job] = batch_run(demo, job, bar, uri, count)
                runs[job].run(demo.size.workers, planned)
                rows[job] = export(job, uri, demo.out / f"{job}.jsonl")
    expected, got = rows["batch-baseline"], rows["batch-evicted"]
    return {
        "documents": count,
        "workers": demo.size.workers,
        "kills": runs["batch-evicted"].kills,
        "lost": count - len({row["item"] for row in got}),
        "duplicated": len(got) - len({row["item"] for row in got}),
        "rewritten": runs["batch-evicted"].stored() - count,
        "same_scores": len(expected) == count and expected == got,
    }


def batch_run(demo: Demo, job: str, bar: Stage, uri: str, count: int) -> BatchRun:
    def launch(log: Path) -> Pod:
        arguments = (
            "batch", "run", job, "--checkpoints", str(demo.out / "checkpoints"), "--run", "train-evicted",
            "--window", str(DEFAULT_WINDOW.pod_s), "--micro-batch", "8", "--lease", "5",
            "--events", str(demo.out / "events" / f"{job}.jsonl"),
        )  # fmt: skip
        return Pod(demo.command("holdfast", *arguments), log=log, owner=demo.owner, env={"HOLDFAST_DATABASE_URL": uri})

    return BatchRun(
        job=job,
        items=count,
        window_s=DEFAULT_WINDOW.pod_s,
        folder=demo.out,
        launch=launch,
        log=bar.log,
        progress=bar.at,
    )


def documents(source: Path, target: Path, limit: int) -> int:
    """Up to `limit` text files of `source`, copied flat; how many."""
    target.mkdir()
    files = (f for f in sorted(source.rglob("*.py" if source.joinpath("os.py").exists() else "*")) if f.is_file())
    fitting = (f for f in files if 200 < f.stat().st_size < MAX_DOCUMENT_BYTES and "site-packages" not in f.parts)
    count = 0
    for count, file in enumerate(fitting, start=1):
        name = "_".join(file.relative_to(source).parts)
        shutil.copyfile(file, target / f"{count:05d}_{name[-80:]}")
        if count == limit:
            break
    return count


def serve_under_evictions(demo: Demo) -> Served | None:
    """(d) Requests at a fixed rate while the servers on Spot get their notice."""
    rounds = demo.size.serving_rounds
    if not rounds:
        return None
    total = rounds * OVERFLOW
    with stage(
        demo.console, "serve", f"{BASE} servers on demand, {OVERFLOW} on Spot, {total} evictions", total=total
    ) as bar:
        served = serve(demo.out / "serving", owner=demo.owner, rounds=rounds, log=bar.log, progress=bar.at)
        bar.log(
            f"{served.requests:,} requests: {served.failed} failed, {served.shed} refused for load, "
            f"{served.retries} tried again by the proxy, 99 of 100 within {served.p99_ms} ms"
        )
        return served


def report(demo: Demo) -> None:
    with stage(demo.console, "report", "write report.html"):
        arguments = ("report", "--events", str(demo.out / "events"), "--summary", str(demo.out / "summary.json"))
        # Its exit 1 says that an objective is broken, which the verdict reports.
        completed(
            demo.command("monitoring", *arguments, "--out", str(demo.out / "report.html")),
            done=(EXIT_DONE, EXIT_FINDINGS),
        )


def verdict(demo: Demo, summary: dict[str, Any]) -> int:
    """The last line; a promise not kept is named."""
    training, batch, serving = summary["training"], summary["batch"], summary.get("serving")
    promises = {
        "final parameters identical to the last bit": training["bit_exact"],
        "no false completion": not training["false_completions"],
        "no document lost": batch["lost"] == 0,
        "no document stored twice": batch["duplicated"] == 0,
        "same scores as undisturbed": batch["same_scores"],
    } | served_promises(serving)
    broken = [promise for promise, kept in promises.items() if not kept]
    if broken:
        print(f"demo broken: {'; '.join(broken)}; see {os.path.relpath(demo.out)}/report.html")
        return EXIT_FINDINGS
    print(
        f"demo ok: training bit-exact after {training['evictions']} evictions, {training['lost_steps']} steps done again "
        f"(naive twin: {twin_outcome(training['naive'], training['steps'])}); {batch['documents']} documents scored once each "
        f"through {batch['kills']} evictions; {served_outcome(serving)}{summary['seconds']:.0f} s; {os.path.relpath(demo.out)}/report.html"
    )
    return EXIT_DONE


def served_promises(serving: dict[str, Any] | None) -> dict[str, bool]:
    if not serving:
        return {}
    return {
        "no request failed": serving["failed"] == 0 < serving["requests"],
        "clients, proxy and servers count the same": serving["counts_differ"] == 0,
    }


def served_outcome(serving: dict[str, Any] | None) -> str:
    if not serving:
        return ""
    counts = f"{serving['requests']:,} requests, {serving['failed']} failed and {serving['shed']} refused"
    return f"{counts} through {serving['evictions']} evictions; "


def twin_outcome(naive: dict[str, Any], steps: int) -> str:
    """What became of the twin, in a few words."""
    early = naive["false_completion_steps"]
    clauses = [f"called complete at step {early[0]} of {steps}"] if early else []
    clauses += [f"{naive['lost_steps']} steps done again", "same result" if naive["bit_exact"] else "another result"]
    return ", ".join(clauses)
