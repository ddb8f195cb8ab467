"""`prove` and `janitor`: what is refused before anything starts, who is asked, what is printed."""

import datetime
import os
import secrets
import sys
from pathlib import Path

import typer

from holdfast.clients import gcloud
from holdfast.contract.errors import InputError, Unjudged
from holdfast.contract.exit_codes import EXIT_DONE, EXIT_FINDINGS, EXIT_STOPPED
from holdfast.contract.machines import MACHINE_TYPES
from holdfast.contract.pools import Pool
from holdfast.place import prices
from holdfast.tables import print_json, print_table
from infra.environments import Environment
from infra.ops.deploy import require_no_placeholders
from infra.proof import dataset, janitor, steps
from infra.proof.estimate import HOURS, estimate, spot_hourly
from infra.proof.journal import Journal, unfinished
from infra.proof.machines import smallest_spot
from infra.proof.rates import MARGIN, STALE_DAYS, Rates
from infra.proof.rates import load as load_rates
from infra.proof.runner import TIMED_OUT, Runner

OUT = steps.ROOT / "out" / "proofs"


def prove(environment: Environment, *, max_usd: float, yes: bool, as_json: bool, out: Path = OUT) -> int:
    """Price, refuse or ask, then run all of it. The exit code."""
    require_no_placeholders(environment)
    table, rates = prices.load(), load_rates()
    spot = smallest_spot(environment, table, rates)
    items = estimate(environment, spot, table, rates)
    total = sum(item.usd for item in items)
    rows = [(item.what, f"{item.usd:.2f}") for item in items]
    _show_price(rows, total, as_json)
    typer.echo(f"prices: GPU machines of {table.fetched_at}, the rest of {rates.dates}", err=True)
    if doubtful := _doubtful(environment, spot, table, rates):
        higher = f"{MARGIN - 1:.0%} higher, for they have no date or are older than {STALE_DAYS} days"
        typer.echo(f"counted {higher}: {', '.join(doubtful)}", err=True)
    if refusal := _refusal(environment, total, max_usd):
        typer.echo(f"stopped: {refusal}", err=True)
        return EXIT_STOPPED
    if not yes and not _agreed(environment, total):
        return EXIT_STOPPED
    journal = Journal(run=_new_run(), environment=environment.name, usd=round(total, 2))
    folder = out / journal.run
    runner = Runner(folder, journal, _variables(journal, folder), _line)
    dataset.write(folder)
    run = steps.Run(pool=spot, folder=folder, usd_per_hour=spot_hourly(environment, spot, table, rates))
    held = runner.run(steps.proof(environment, run), steps.clean_up(environment), HOURS * 3600)
    _show(journal, folder, as_json)
    return EXIT_DONE if held else EXIT_FINDINGS


def clean(environment: Environment, *, yes: bool, as_json: bool, out: Path = OUT) -> int:
    """What proofs of an environment left: shown, and with `yes` removed. EXIT_FINDINGS while something is there."""
    require_no_placeholders(environment)
    open_runs = unfinished(out, environment.name)
    for folder, journal in open_runs if yes else ():
        Runner(folder, journal, _variables(journal, folder), _line).clean(steps.clean_up(environment))
    left = list(janitor.labelled(environment))
    refused = janitor.remove(left) if yes else []
    for text in refused:
        typer.echo(text, err=True)
    still = unfinished(out, environment.name)
    commands = [" ".join(("gcloud", *command)) for command in left]
    if as_json:
        runs = [journal.run for _, journal in still]
        print_json("janitor", environment=environment.name, runs=runs, removals=commands, removed=yes, refused=refused)
    else:
        for _, journal in still:
            print(f"run {journal.run} was not cleaned up: its log is in {out / journal.run}")
        for command in commands:
            print(command)
    if yes:
        return EXIT_FINDINGS if still or refused else EXIT_DONE
    if still or commands:
        typer.echo(f"Next: make janitor ENV={environment.name} YES=1", err=True)
    return EXIT_FINDINGS if still or commands else EXIT_DONE


def _doubtful(environment: Environment, spot: Pool, table: prices.Table, rates: Rates) -> list[str]:
    quote = table.quote(MACHINE_TYPES[spot.machine_type], environment.price_region, spot.capacity)
    old = quote is not None and rates.bound(quote.usd, quote.as_of) > quote.usd
    return [*([f"{spot.machine_type} on Spot"] if old else ()), *rates.doubtful]


def _refusal(environment: Environment, total: float, max_usd: float) -> str:
    """Why nothing may start; empty where it may."""
    if environment.production:
        return "production is not proven: make an environment of its own, `python -m infra new proof`"
    if total > max_usd:
        return f"up to {total:.2f} USD in {HOURS:.0f} h, --max-usd is {max_usd:.2f}"
    # A proof ends with a destroy: of an environment that somebody uses, that would be the end.
    if there := _deployed(environment):
        return f"{there} is there already: a proof destroys what it finds; prove an environment of its own"
    return ""


def _deployed(environment: Environment) -> str:
    cluster = ("container", "clusters", "describe", environment.cluster_name, f"--region={environment.region}")
    bucket = ("storage", "buckets", "describe", f"gs://{environment.bucket('checkpoints')}")
    for what, arguments in (("the cluster", cluster), ("the bucket of checkpoints", bucket)):
        try:
            gcloud.ask(*arguments, project=environment.project)
        except gcloud.Refused as error:
            if not any(text in str(error) for text in ("NOT_FOUND", "not found", "404", "SERVICE_DISABLED")):
                raise Unjudged(f"whether {environment.name} is deployed: {error}") from error
        else:
            return f"{what} of {environment.name}"
    return ""


def _agreed(environment: Environment, total: float) -> bool:
    if not sys.stdin.isatty():
        raise InputError("no terminal to ask on", got="no --yes", allowed="--yes", fix="repeat with --yes")
    typer.echo(f"Up to {total:.2f} USD in {environment.project}. Everything is destroyed at the end.", err=True)
    return input("Type the name of the environment to go on: ").strip() == environment.name


def _show_price(rows: list[tuple[str, str]], total: float, as_json: bool) -> None:
    # Standard output is one object where one is asked for.
    if as_json:
        typer.echo(f"up to {total:.2f} USD", err=True)
    else:
        print_table(("WHAT", f"USD IN {HOURS:.0f} H"), [*rows, ("up to", f"{total:.2f}")])


def _new_run() -> str:
    """A label's value: small letters, digits, dashes."""
    now = datetime.datetime.now(datetime.UTC)
    return f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _variables(journal: Journal, folder: Path) -> dict[str, str]:
    # gcloud writes credentials where KUBECONFIG says: never into the user's own file.
    return {"HOLDFAST_RUN": journal.run, "KUBECONFIG": str(folder / "kubeconfig"), "PYTHONUNBUFFERED": "1"}


def _line(text: str) -> None:
    typer.echo(text, err=True)


def _show(journal: Journal, folder: Path, as_json: bool) -> None:
    if as_json:
        steps_done = [
            {"step": d.step, "holds": d.holds, "held": d.code == 0, "exit": d.code, "seconds": d.seconds}
            for d in journal.steps
        ]
        print_json("proof", run=journal.run, environment=journal.environment, state=journal.state, steps=steps_done)
        return
    codes = {0: "held", TIMED_OUT: "too long"}
    rows = [(d.step, codes.get(d.code, f"exit {d.code}"), f"{d.seconds:.0f}", d.holds) for d in journal.steps]
    print_table(("STEP", "VERDICT", "S", "WHAT IT PROVES"), rows)
    print(f"{journal.run}: {journal.state}; logs in {os.path.relpath(folder)}")
    if journal.state != "clean":
        typer.echo(f"Next: make janitor ENV={journal.environment} YES=1", err=True)
