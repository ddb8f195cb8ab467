"""Prove an environment on its project: the price first, then commands that a person could type, and
always a destroy.

The first interrupt ends the step that runs and goes on with the destroy; a later one ends one step
of that. Why it is so: infra/decisions/0019.
"""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import typer

from holdfast.clients import gcloud
from holdfast.cost.prices import Table, family, load
from holdfast.support.errors import InputError, Unjudged
from holdfast.support.tables import print_table
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS, EXIT_STOPPED
from holdfast.vocabulary.machines import MACHINE_TYPES
from holdfast.vocabulary.pools import Pool, Role
from infra.environments import Environment
from infra.ops.deploy import require_no_placeholders, typed_name
from infra.ops.synth import ROOT

HOURS = 5.0  # what is priced: a proof ends then, with the time of its destroy kept back
PODS = 2  # of a sample; a pod fills a machine
# at a time: a machine that was taken may still be billed while its successor starts
MACHINES = PODS + 1
# an apply that is interrupted finishes what it began and writes its state: a kill loses resources
GRACE_S = 1_800.0
# USD an hour in us-central1: pages of GKE, Cloud NAT and Cloud SQL, and the Cloud Billing Catalog
# of 2026-08-20. A family's number is a vCPU with its memory on demand; a disk's is a GiB of pd-ssd,
# the most expensive.
USD = {
    "cluster": 0.10,
    "NAT": 0.0498,
    "e2": 0.0336,
    "n2": 0.0486,
    "c3": 0.0505,
    "disk": 0.000233,
    "database vCPU": 0.0413,
    "database GiB": 0.007,
}
ELSEWHERE = 1.6  # no region is more expensive than us-central1 by more
MARGIN = 1.25  # on all of it: prices rise, and an undated one may have
STEPS = [
    line
    for line in Path(__file__).with_name("prove_steps.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
CLEAN_UP = 3  # the last ones: each is tried, even if the one before failed


class Step(NamedTuple):
    name: str
    minutes: float
    command: tuple[str, ...]


def prove(
    environment: Environment,
    *,
    max_usd: float,
    yes: bool,
    out: Path = ROOT / "out" / "proofs",
) -> int:
    """The exit code. InputError, Unjudged: nothing was started."""
    require_no_placeholders(environment)
    table = load()
    pool = smallest_spot(environment, table)
    parts = [(what, MARGIN * hourly * HOURS) for what, hourly in prices(environment, pool, table)]
    total = sum(usd for _, usd in parts)
    print_table(
        ("WHAT", f"USD IN {HOURS:.0f} H"),
        [(what, f"{usd:.2f}") for what, usd in [*parts, ("up to", total)]],
    )
    refusal = _refusal(environment, total, max_usd, yes)
    if refusal:
        typer.echo(f"stopped: {refusal}", err=True)
        return EXIT_STOPPED
    run = f"{environment.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    script = Script(folder=out / run, run=run)
    script.folder.mkdir(parents=True, exist_ok=True)
    # Enough that the batch outlasts the loss of a machine; a fresh project has an empty bucket.
    rows = (
        json.dumps(
            {
                "id": str(n),
                "text": f"the square of {n} is {n * n}",
            }
        )
        for n in range(100_000)
    )
    (script.folder / "items.jsonl").write_text("".join(f"{row}\n" for row in rows))
    by_hand = (
        f"make destroy ENV={environment.name}; python -m infra leftovers {environment.name} --run"
        f" {run} --remove"
    )
    script.note(f"run {run}, logs in {script.folder}. If this is killed: {by_hand}")
    every = steps(
        environment, pool, script.folder, run, MACHINES * _hourly(environment, pool, table)
    )
    # The first step looks and makes nothing: there is nothing to destroy yet.
    held = script.play(every[:1], (), math.inf) and script.play(
        every[1:-CLEAN_UP], every[-CLEAN_UP:], HOURS * 3600
    )
    print_table(("STEP", "VERDICT", "S"), script.done)
    if not held:
        script.note(f"Next, if something is left: {by_hand}")
    return EXIT_DONE if held else EXIT_FINDINGS


@dataclass(kw_only=True)
class Script:
    """Plays steps in order, each with a log of its own, and then the clean-up, even after a
    failure.
    """

    folder: Path
    run: str
    done: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    notices: int = 0

    def play(self, steps: Sequence[Step], clean_up: Sequence[Step], within_s: float) -> bool:
        """Whether all held. The clean-up's share of `within_s` is kept back: that time was paid
        for.
        """
        ends = time.monotonic() + within_s - sum(step.minutes * 60 for step in clean_up)
        before = {}
        for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before[n] = signal.signal(n, self._noticed)
        try:
            held = all(self._step(step, ends, 0) for step in steps)
        finally:
            clean = [self._step(step, math.inf, self.notices) for step in clean_up]
            for number, handler in before.items():
                signal.signal(number, handler)
        return held and all(clean)

    def _step(self, step: Step, ends: float, heard: int) -> bool:
        began = time.monotonic()
        log = self.folder / f"{len(self.done):02}-{step.name}.log"
        try:
            verdict = self._ended(step.command, log, min(ends, began + step.minutes * 60), heard)
        # a program that is not installed, or a full disk: the clean-up is still tried
        except OSError as error:
            verdict = str(error)
        self.done.append((step.name, verdict, f"{time.monotonic() - began:.0f}"))
        if verdict != "held" and log.exists():
            tail = log.read_text(errors="replace").splitlines()[-20:]
        else:
            tail = ()
        self.note("\n  ".join((f"{step.name}: {verdict}", *tail)))
        return verdict == "held"

    def _ended(
        self,
        command: Sequence[str],
        log: Path,
        ends: float,
        heard: int,
    ) -> str:
        # gcloud writes credentials where KUBECONFIG says: never into the user's own file.
        own = {
            "HOLDFAST_RUN": self.run,
            "KUBECONFIG": str(self.folder / "kubeconfig"),
            "PYTHONUNBUFFERED": "1",
        }
        with log.open("wb") as file:
            if time.monotonic() > ends or self.notices > heard:
                return "not begun"
            # A session of its own: Ctrl-C reaches this process alone, which decides what becomes of
            # the step.
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=os.environ | own,
                start_new_session=True,
            )
        verdict = ""
        kill_at = math.inf
        while (code := child.poll()) is None:
            now = time.monotonic()
            # Sent once: at a second interrupt Terraform ends without writing its state.
            if not verdict and (self.notices > heard or now > ends):
                verdict = "interrupted" if self.notices > heard else "too long"
                kill_at = now + GRACE_S
                os.killpg(child.pid, signal.SIGINT)
            elif now > kill_at:
                os.killpg(child.pid, signal.SIGKILL)
            time.sleep(0.1)
        return verdict or (f"exit {code}" if code else "held")

    def _noticed(self, *_: object) -> None:
        self.notices += 1

    def note(self, text: str) -> None:
        # A terminal that was closed must not end the clean-up.
        with suppress(OSError):
            typer.echo(text, err=True)


def _refusal(
    environment: Environment,
    total: float,
    max_usd: float,
    yes: bool,
) -> str:
    """Why nothing may start; empty where it may."""
    if environment.production:
        return (
            "`prove` does not run in production: create a separate environment, `python -m infra"
            " new proof`"
        )
    if total > max_usd:
        return f"up to {total:.2f} USD in {HOURS:.0f} h, --max-usd is {max_usd:.2f}"
    # A proof ends with a destroy: an environment in use would be lost.
    cluster = (
        "container",
        "clusters",
        "describe",
        environment.cluster_name,
        f"--region={environment.region}",
    )
    for there in (
        cluster,
        ("storage", "buckets", "describe", f"gs://{environment.bucket('checkpoints')}"),
    ):
        try:
            gcloud.ask(*there, project=environment.project)
        except gcloud.GcloudFailed as error:
            if not re.search(r"NOT_FOUND|not found|404|SERVICE_DISABLED", str(error)):
                raise
        else:
            return f"{there[3]} exists already, and a proof destroys it; use a separate environment"
    if yes or typed_name(environment) == environment.name:
        return ""
    return "not confirmed; fix: repeat with --yes"


def smallest_spot(environment: Environment, table: Table) -> Pool:
    """The cheapest Spot pool of GPUs that holds a sample. Unjudged where one that does has no
    price.
    """
    fitting = [
        pool
        for pool in environment.pools()
        if pool.capacity is Capacity.SPOT
        and pool.gpus_per_node
        and pool.max_nodes >= PODS
        and environment.quota_gpus(pool.pool_class or pool.name) >= PODS * pool.gpus_per_node
    ]
    if not fitting:
        what = "no Spot pool is large enough for the sample jobs"
        fix = "raise both"
        allowed = f"a Spot group of GPUs with max_nodes and quota for {PODS}"
        raise InputError(
            what,
            got=environment.name,
            allowed=allowed,
            fix=fix,
        )
    return min(fitting, key=lambda pool: _hourly(environment, pool, table))


def prices(environment: Environment, spot: Pool, table: Table) -> Iterator[tuple[str, float]]:
    """What bills while a proof runs, in USD an hour. Unjudged where a part has no price: nothing is
    guessed.
    """
    yield from ((part, _usd(environment, part)) for part in ("cluster", "NAT"))
    for pool in environment.pools():
        nodes = pool.max_nodes if pool.role is Role.SYSTEM else pool.min_nodes
        if nodes and pool.capacity is Capacity.ON_DEMAND:
            yield (
                f"{nodes} x {pool.machine_type} ({pool.name})",
                nodes * _hourly(environment, pool, table),
            )
    # made by auto-provisioning
    loader = MACHINE_TYPES["e2-standard-4"].vcpus * _usd(environment, "e2")
    yield (
        "1 x e2-standard-4 (loader)",
        loader + environment.auto_provisioning.disk_gib * _usd(environment, "disk"),
    )
    yield (
        f"{MACHINES} x {spot.machine_type} Spot ({spot.name})",
        MACHINES * _hourly(environment, spot, table),
    )
    database = environment.database
    if database:
        size = re.fullmatch(r"db-custom-(\d+)-(\d+)", database.tier)
        if not size:
            raise Unjudged(f"no price of database {database.tier}: use db-custom-<vCPUs>-<MiB>")
        units = {
            "database vCPU": int(size[1]),
            "database GiB": int(size[2]) / 1024,
            "disk": database.disk_gib,
        }
        hourly = sum(amount * _usd(environment, part) for part, amount in units.items())
        yield f"database {database.tier}", hourly * (2 if database.highly_available else 1)


def _hourly(environment: Environment, pool: Pool, table: Table) -> float:
    """Of one machine with its disk."""
    machine = MACHINE_TYPES[pool.machine_type]
    region = environment.region
    disk = pool.disk_gib * _usd(environment, "disk")
    if not machine.gpus:
        return machine.vcpus * _usd(environment, family(machine.name)) + disk
    quote = table.quote(machine, region, pool.capacity)
    if quote is None:
        raise Unjudged(
            f"no {pool.capacity.value} price of {machine.name} in {region}: `holdfast prices"
            " --refresh`"
        )
    return quote.usd + disk


def _usd(environment: Environment, part: str) -> float:
    if part not in USD:
        raise Unjudged(f"no price of {part}: the cost has no bound")
    return USD[part] * (1.0 if environment.region == "us-central1" else ELSEWHERE)


def steps(
    environment: Environment,
    spot: Pool,
    folder: Path,
    run: str,
    usd_per_hour: float,
) -> list[Step]:
    """`usd_per_hour`: the cap of what is submitted, as it was priced."""
    reach = "--dns-endpoint" if environment.cluster.dns_endpoint_public else "--internal-ip"
    values = {
        "e": environment,
        "pool": spot.name,
        "pods": PODS,
        "out": folder,
        "run": run,
        "reach": reach,
        "cap": f"--max-usd-per-hour={usd_per_hour:.4f}",
        "bucket": f"gs://{environment.bucket('data')}/",
    }
    lines = ([word.format(**values) for word in line.split()] for line in STEPS)
    programs = ("infra", "workloads", "workloads.images.base", "holdfast")
    python: dict[str, tuple[str, ...]] = dict.fromkeys(programs, (sys.executable, "-m"))
    return [
        Step(name, float(minutes), (*python.get(words[0], ()), *words))
        for name, minutes, *words in lines
    ]
