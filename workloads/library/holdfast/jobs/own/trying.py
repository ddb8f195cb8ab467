"""The first run: the smallest sample on the cheapest Spot pool, followed with its reasons until its receipt."""

import time
from dataclasses import dataclass

from holdfast.clients.api import Api
from holdfast.contract.capacity import Capacity
from holdfast.contract.environment import ENV_CHECKPOINTS, ENV_RUN
from holdfast.contract.exit_codes import EXIT_STOPPED
from holdfast.jobs import following, show, submit
from holdfast.jobs.cli import agree
from holdfast.jobs.following import Following, Report
from holdfast.jobs.job_snapshot import JobSnapshot
from holdfast.jobs.own import commands, offers
from holdfast.jobs.own.job_file import OwnJob
from holdfast.jobs.own.prepared import Prepared, prepare
from holdfast.place import prices
from holdfast.platform import Platform


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    steps: int = 200
    following: Following


def run(api: Api, platform: Platform, asked: Asked, caps: submit.Caps, *, yes: bool) -> int:
    """The exit code: 0 complete, 1 failed, 4 over the cap."""
    prepared = prepare(sample(asked, platform), platform)
    bought = commands.plan(prepared, caps, None)
    show.plan(bought, f"first run of {platform.name}")
    for refusal in bought.refusals:
        show.note(f"refused: {refusal}")
    if bought.refusals:
        return EXIT_STOPPED
    agree(yes)
    return follow(api, prepared, asked.following, show.note)


def sample(asked: Asked, platform: Platform) -> OwnJob:
    """The reference trainer on Python's own sources, for minutes; a name of its own, or it would resume the last one."""
    offer = offers.cheapest_spot(platform, prices.load())
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
        environment=platform.name,
        image="trainer",
        command=tuple(command),
        gpus=f"{offer.machine.gpus}x{offer.accelerator}",
        capacity=Capacity.SPOT,
        max_hours=4.0,
    )


def follow(api: Api, prepared: Prepared, asked: Following, report: Report) -> int:
    """Submits it and follows it to its receipt."""
    for name in submit.apply(api, prepared.bodies):
        report(f"applied {name}")
    return following.follow(api, prepared.platform, JobSnapshot(body=prepared.bodies[-1], pods=[]), asked, report)
