"""Prove an environment on its project: print the price, run commands that a person could type, and
always destroy.

The first interrupt ends the running step and continues with the destroy; a later one ends one step
of the destroy. Decision: infra/decisions/0019.
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
from holdfast.cost.prices import Table, load
from holdfast.support.errors import InputError
from holdfast.support.tables import print_table
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS, EXIT_STOPPED
from holdfast.vocabulary.machines import MACHINE_TYPES
from holdfast.vocabulary.pools import Pool, Role
from infra.environments import Environment
from infra.ops.cost import database_price, node_price, price
from infra.ops.deploy import ask_for_name, require_no_placeholders
from infra.ops.synth import ROOT

HOURS = 5.0  # the price covers this time, which includes the destroy
PODS = 2  # pods of a sample; each fills a machine
# A preempted machine may still be billed while its successor starts.
MACHINES = PODS + 1
# An interrupted apply finishes its requests and writes its state: a kill would lose resources.
GRACE_S = 1_800.0
MARGIN = 1.25  # for prices that have risen since
STEPS = Path(__file__).with_name("prove_steps.txt")
CLEAN_UP = 3  # the last steps: each is tried, even if the one before failed


SUCCESS = "held"


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
    """Run the proof and return the exit code. InputError and Unjudged mean that nothing was
    started.
    """
    require_no_placeholders(environment)
    table = load()
    pool = smallest_spot(environment, table)
    total = _print_prices(environment, pool, table)
    refusal = _find_refusal(environment, total, max_usd, yes)
    if refusal:
        typer.echo(f"stopped: {refusal}", err=True)
        return EXIT_STOPPED
    run = f"{environment.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    script = Script(folder=out / run, run=run)
    script.folder.mkdir(parents=True, exist_ok=True)
    _write_items(script.folder / "items.jsonl")
    clean_up_command = (
        f"make destroy ENV={environment.name}; python -m infra leftovers {environment.name} --run"
        f" {run} --remove"
    )
    script.note(f"run {run}, logs in {script.folder}. If this is killed: {clean_up_command}")
    usd_per_hour = MACHINES * node_price(environment, pool, table)
    first, *middle = steps(environment, pool, script.folder, run, usd_per_hour)
    clean_up = middle[-CLEAN_UP:]
    del middle[-CLEAN_UP:]
    # The first step only looks: if it fails, there is nothing to destroy.
    succeeded = script.play([first], (), math.inf)
    if succeeded:
        succeeded = script.play(middle, clean_up, HOURS * 3600)
    print_table(("STEP", "VERDICT", "S"), script.done)
    if succeeded:
        return EXIT_DONE
    script.note(f"Next, if something is left: {clean_up_command}")
    return EXIT_FINDINGS


def _print_prices(environment: Environment, pool: Pool, table: Table) -> float:
    """Print the price of each part, and return the total in USD."""
    total = 0.0
    rows = []
    for part, hourly in prices(environment, pool, table):
        usd = MARGIN * hourly * HOURS
        total += usd
        rows.append((part, f"{usd:.2f}"))
    rows.append(("up to", f"{total:.2f}"))
    print_table(("WHAT", f"USD IN {HOURS:.0f} H"), rows)
    return total


def _write_items(path: Path) -> None:
    """Write items for the batch, enough that it outlasts the loss of a machine."""
    with path.open("w") as file:
        for number in range(100_000):
            item = {
                "id": str(number),
                "text": f"the square of {number} is {number * number}",
            }
            file.write(f"{json.dumps(item)}\n")


Row = tuple[str, str, str]
"""A step that ended: its name, its verdict, its seconds."""


@dataclass(kw_only=True)
class Script:
    """Runs steps in order, each with its own log, and then the clean-up, even after a failure."""

    folder: Path
    run: str
    done: list[Row] = field(default_factory=list)
    notices: int = 0

    def play(self, steps: Sequence[Step], clean_up: Sequence[Step], within_s: float) -> bool:
        """Run the steps and return whether all succeeded. The clean-up's share of `within_s` is
        reserved, since the price covers that time.
        """
        reserved_s = sum(step.minutes * 60 for step in clean_up)
        deadline = time.monotonic() + within_s - reserved_s
        handlers = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handlers[number] = signal.signal(number, self._count_notice)
        try:
            succeeded = all(self._run_step(step, deadline, 0) for step in steps)
        finally:
            results = [self._run_step(step, math.inf, self.notices) for step in clean_up]
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return succeeded and all(results)

    def _run_step(self, step: Step, deadline: float, notices: int) -> bool:
        """Run a step until `deadline`, its own limit, or the next notice after `notices`."""
        start = time.monotonic()
        deadline = min(deadline, start + step.minutes * 60)
        number = len(self.done)
        log = self.folder / f"{number:02}-{step.name}.log"
        try:
            verdict = self._run_command(step.command, log, deadline, notices)
        # A program that is not installed, or a full disk: the clean-up is still tried.
        except OSError as error:
            verdict = str(error)
        seconds = time.monotonic() - start
        self.done.append((step.name, verdict, f"{seconds:.0f}"))
        lines = [f"{step.name}: {verdict}"]
        if verdict != SUCCESS and log.exists():
            lines += log.read_text(errors="replace").splitlines()[-20:]
        self.note("\n  ".join(lines))
        return verdict == SUCCESS

    def _run_command(
        self,
        command: Sequence[str],
        log: Path,
        deadline: float,
        notices: int,
    ) -> str:
        """Run a command and return the verdict."""
        variables = os.environ | {
            "HOLDFAST_RUN": self.run,
            # gcloud writes credentials into this file, and not into the user's own.
            "KUBECONFIG": str(self.folder / "kubeconfig"),
            "PYTHONUNBUFFERED": "1",
        }
        with log.open("wb") as file:
            if time.monotonic() > deadline or self.notices > notices:
                return "not begun"
            # In a new session, Ctrl-C reaches only this process, which decides what happens to the
            # step.
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,
            )
        verdict = ""
        kill_at = math.inf
        while child.poll() is None:
            now = time.monotonic()
            is_interrupted = self.notices > notices
            # SIGINT is sent once: at the second, Terraform ends without writing its state.
            if not verdict and (is_interrupted or now > deadline):
                verdict = "interrupted" if is_interrupted else "too long"
                kill_at = now + GRACE_S
                os.killpg(child.pid, signal.SIGINT)
            elif now > kill_at:
                os.killpg(child.pid, signal.SIGKILL)
            time.sleep(0.1)
        if verdict:
            return verdict
        return f"exit {child.returncode}" if child.returncode else SUCCESS

    def _count_notice(self, *_: object) -> None:
        self.notices += 1

    def note(self, text: str) -> None:
        """Print to standard error."""
        # A closed terminal must not end the clean-up.
        with suppress(OSError):
            typer.echo(text, err=True)


def _find_refusal(
    environment: Environment,
    total: float,
    max_usd: float,
    yes: bool,
) -> str:
    """Return the reason why the proof must not start; empty if it may."""
    if environment.production:
        return (
            "`prove` does not run in production: create a separate environment, `python -m infra"
            " new proof`"
        )
    if total > max_usd:
        return f"up to {total:.2f} USD in {HOURS:.0f} h, --max-usd is {max_usd:.2f}"
    # A proof ends with a destroy: an environment in use would be lost.
    region = f"--region={environment.region}"
    cluster = ("container", "clusters", "describe", environment.cluster_name, region)
    bucket = ("storage", "buckets", "describe", f"gs://{environment.bucket('checkpoints')}")
    for query in (cluster, bucket):
        if _exists(query, environment.project):
            return f"{query[3]} exists already, and a proof destroys it; use a separate environment"
    if yes or ask_for_name(environment) == environment.name:
        return ""
    return "not confirmed; fix: repeat with --yes"


def _exists(query: tuple[str, ...], project: str) -> bool:
    try:
        gcloud.ask(*query, project=project)
    except gcloud.GcloudFailed as error:
        if not re.search(r"NOT_FOUND|not found|404|SERVICE_DISABLED", str(error)):
            raise
        return False
    return True


def smallest_spot(environment: Environment, table: Table) -> Pool:
    """Return the cheapest Spot pool of GPUs that holds a sample. Raises InputError if there is
    none, and Unjudged if one has no price.
    """
    fitting = [pool for pool in environment.pools() if _holds_sample(environment, pool)]
    if not fitting:
        raise InputError(
            "no Spot pool is large enough for the sample jobs",
            got=environment.name,
            allowed=f"a Spot group of GPUs with max_nodes and quota for {PODS}",
            fix="raise both",
        )
    return min(fitting, key=lambda pool: node_price(environment, pool, table))


def _holds_sample(environment: Environment, pool: Pool) -> bool:
    if pool.capacity is not Capacity.SPOT or not pool.gpus_per_node:
        return False
    quota = environment.quota_gpus(pool.pool_class or pool.name)
    return pool.max_nodes >= PODS and quota >= PODS * pool.gpus_per_node


def prices(environment: Environment, spot: Pool, table: Table) -> Iterator[tuple[str, float]]:
    """Yield what bills while a proof runs, in USD an hour. Raises Unjudged if a part has no
    price.
    """
    for part in ("cluster", "NAT"):
        yield part, price(environment, part)
    for pool in environment.pools():
        nodes = pool.max_nodes if pool.role is Role.SYSTEM else pool.min_nodes
        # A reservation is paid for with or without a proof.
        if nodes and pool.capacity is not Capacity.RESERVED:
            usd = nodes * node_price(environment, pool, table)
            yield f"{nodes} x {pool.machine_type} ({pool.name})", usd
    # Auto-provisioning creates this machine.
    usd = MACHINE_TYPES["e2-standard-4"].vcpus * price(environment, "e2")
    usd += environment.auto_provisioning.disk_gib * price(environment, "disk")
    yield "1 x e2-standard-4 (loader)", usd
    usd = MACHINES * node_price(environment, spot, table)
    yield f"{MACHINES} x {spot.machine_type} Spot ({spot.name})", usd
    if environment.database:
        usd = database_price(environment, environment.database)
        yield f"database {environment.database.tier}", usd


def steps(
    environment: Environment,
    spot: Pool,
    folder: Path,
    run: str,
    usd_per_hour: float,
) -> list[Step]:
    """Read the steps of prove_steps.txt and fill in their values. `usd_per_hour` caps submitted
    jobs at their price.
    """
    endpoint = "--dns-endpoint" if environment.cluster.dns_endpoint_public else "--internal-ip"
    values = {
        "e": environment,
        "pool": spot.name,
        "pods": PODS,
        "out": folder,
        "run": run,
        "reach": endpoint,
        "cap": f"--max-usd-per-hour={usd_per_hour:.4f}",
        "bucket": f"gs://{environment.bucket('data')}/",
    }
    modules = ("infra", "workloads", "workloads.images.base", "holdfast")
    steps: list[Step] = []
    for line in STEPS.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        name, minutes, *command = [word.format(**values) for word in line.split()]
        if command[0] in modules:
            command = [sys.executable, "-m", *command]
        steps.append(Step(name, float(minutes), tuple(command)))
    return steps
