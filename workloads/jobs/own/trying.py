"""The first run: the smallest sample on the cheapest Spot pool, followed with its reasons until its receipt."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.contract.environment import ENV_CHECKPOINTS, ENV_RUN
from holdfast.contract.errors import Unjudged
from holdfast.contract.exit_codes import EXIT_DONE, EXIT_FINDINGS, EXIT_STOPPED
from infra import environments
from infra.contract.capacity import Capacity
from infra.placement import prices
from monitoring.cost.receipt import receipt
from monitoring.ledger.events import read_folder
from monitoring.ledger.job_ledger import job_ledgers
from workloads.jobs import explain, job_snapshot, show, submit
from workloads.jobs.api import Api, ApiError, Object
from workloads.jobs.cli import agree
from workloads.jobs.job_snapshot import JobSnapshot
from workloads.jobs.listing import ran_s
from workloads.jobs.own import commands, offers
from workloads.jobs.own.job_file import OwnJob
from workloads.jobs.own.prepared import Prepared, prepare

POLL_S = 2.0
PATIENCE_S = 20.0
"""So long it may wait before it is explained why."""
Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    env: str
    evict: bool = False
    steps: int = 200
    timeout_s: float = 7200
    patience_s: float = PATIENCE_S


@dataclass(kw_only=True)
class Followed:
    """What was seen of the job: its pods are gone when it ends."""

    folder: Path
    """Event lines, a file for each pod."""
    pods: dict[str, Object] = field(default_factory=dict[str, Object])
    evicted: str = ""
    """Name of the pod that was taken away."""
    waits_since: float = 0.0
    reported: list[str] = field(default_factory=list[str])


def run(api: Api, asked: Asked, caps: submit.Caps, *, yes: bool) -> int:
    """The exit code: 0 complete, 1 failed, 4 over the cap."""
    prepared = prepare(sample(asked))
    bought = commands.plan(prepared, caps, None)
    show.plan(bought, f"first run of {asked.env}")
    for refusal in bought.refusals:
        show.note(f"refused: {refusal}")
    if bought.refusals:
        return EXIT_STOPPED
    agree(yes)
    return follow(api, prepared, asked, show.note)


def sample(asked: Asked) -> OwnJob:
    """The reference trainer on Python's own sources, for minutes; a name of its own, or it would resume the last one."""
    offer = offers.cheapest_spot(environments.load(asked.env), prices.load())
    command = [
        "python",
        "-m",
        "holdfast",
        "train",
        "run",
        "--checkpoints",
        f"$({ENV_CHECKPOINTS})",
        "--run",
        f"$({ENV_RUN})",
    ]
    command += ["--ranks", str(offer.machine.gpus), "--steps", str(asked.steps), "--every", "5s", "--device", "cuda"]
    return OwnJob(
        name=time.strftime("try-%m%d-%H%M%S", time.gmtime()),
        environment=asked.env,
        image="trainer",
        command=tuple(command),
        gpus=f"{offer.machine.gpus}x{offer.accelerator}",
        capacity=Capacity.SPOT,
        max_hours=4.0,
    )


def follow(api: Api, prepared: Prepared, asked: Asked, report: Report) -> int:
    """Submits it, reports what changes, evicts once if asked, and prints the receipt."""
    for name in submit.apply(api, prepared.bodies):
        report(f"applied {name}")
    meta = prepared.bodies[-1]["metadata"]
    deadline = time.monotonic() + asked.timeout_s
    with tempfile.TemporaryDirectory(prefix="holdfast-try-") as folder:
        seen = Followed(folder=Path(folder))
        (seen.folder / "none.jsonl").touch()  # a folder without a file is refused, and no pod has written yet
        while not (ended := _look(api, meta, asked, seen, report)):
            if time.monotonic() > deadline:
                raise Unjudged(
                    f"{meta['name']} has not ended after {asked.timeout_s:.0f} s: python -m workloads explain {meta['name']}"
                )
            time.sleep(POLL_S)
        report(ended.finished)
        print(bill(prepared, ended, seen))
    return EXIT_DONE if ended.finished == "Complete" else EXIT_FINDINGS


def _look(api: Api, meta: Object, asked: Asked, seen: Followed, report: Report) -> JobSnapshot | None:
    """One look at the job; the job itself when it has ended."""
    job = job_snapshot.find(api, meta["name"], meta["namespace"])
    seen.pods |= {pod["metadata"]["uid"]: pod for pod in job.pods}
    for pod in job.pods:
        _keep_log(api, pod, seen.folder)
    if job.finished:
        return job
    _report(explain.explain(api, meta["name"], meta["namespace"], seen.folder), job, asked, seen, report)
    if asked.evict and not seen.evicted:
        _evict(api, job, seen, report)
    return None


def _report(found: explain.Explanation, job: JobSnapshot, asked: Asked, seen: Followed, report: Report) -> None:
    """A line when the state changes; all six when it has waited for long, and again when their blocker changes."""
    lines = [found.state]
    now = time.monotonic()
    if job.phase("Running"):
        seen.waits_since = 0.0
        lines = [f"{found.state}; {found.cause.blocker}"]
    else:
        seen.waits_since = seen.waits_since or now
        if now - seen.waits_since >= asked.patience_s:
            lines = [f"{name}: {text}" for name, text in found.lines()]
    if lines != seen.reported:
        seen.reported = lines
        for line in lines:
            report(line)


def _evict(api: Api, job: JobSnapshot, seen: Followed, report: Report) -> None:
    """Through the Eviction API, as a drain does it; a budget that refuses now is asked again."""
    running = job.phase("Running")
    if not running:
        return
    meta = running[0]["metadata"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
    }
    try:
        api.create(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/eviction", body)
    except ApiError as error:
        report(f"not evicted yet: {error}")
        return
    seen.evicted = meta["name"]
    report(f"evicted {meta['name']}, as asked")


def _keep_log(api: Api, pod: Object, folder: Path) -> None:
    """Its event lines, as far as its node answers."""
    meta = pod["metadata"]
    try:
        text = api.text(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/log", container="main")
    except ApiError:
        return
    if text:
        (folder / f"{meta['uid']}.jsonl").write_text(text, encoding="utf-8")


def bill(prepared: Prepared, ended: JobSnapshot, seen: Followed) -> str:
    """The receipt in one line; by the clock of the pods where none of their lines could be read."""
    table, env, offer = prices.load(), prepared.env, prepared.placed.offer
    assert offer is not None, "the first run has GPUs"
    spot, demand = (table.quote(offer.machine, env.price_region, each) for each in (Capacity.SPOT, Capacity.ON_DEMAND))
    if spot is None or demand is None:
        return f"{ended.name}: no receipt, since {offer.machine.name} has no price in {env.price_region}"
    runs = [found for found in job_ledgers(read_folder(seen.folder).events) if found.job == ended.name]
    if runs:
        return receipt(runs, spot.usd, demand.usd).line()
    seen.pods |= {pod["metadata"]["uid"]: pod for pod in ended.pods}
    hours = sum(ran_s(pod, time.time()) for pod in seen.pods.values()) / 3600
    evictions = sum(bool(job_snapshot.disruption(pod)) for pod in seen.pods.values()) or int(bool(seen.evicted))
    return (
        f"{ended.name}: paid ${hours * spot.usd:.4f} for {hours * 60:.1f} minutes with {evictions} evictions; on demand "
        f"${hours * demand.usd:.4f}; useful time is not known, since no pod's lines could be read"
    )
