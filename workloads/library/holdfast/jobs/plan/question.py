"""Answers the questions of `holdfast place` about a job on a platform.

A question by options becomes the job that `new-job` would write: with the largest machines of the
platform that make up the GPUs, since GPUs of one machine talk for free; of a batch with the
smallest.
"""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.clients.capacity_advice import Ask, Request
from holdfast.cost.prices import Table
from holdfast.jobs.file.file_text import CHECKPOINT_H
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.plan import any_gpu, obtainability, offers, placement
from holdfast.jobs.plan.obtainability import Obtainability
from holdfast.jobs.plan.placement import Beliefs, Placed
from holdfast.place import output
from holdfast.place.job import JobOptions, parse_accelerator, parse_duration, parse_hours
from holdfast.platform import Platform
from holdfast.support import node_range
from holdfast.support.errors import InputError
from holdfast.support.values import between, finite
from holdfast.vocabulary.capacity import Capacity, Placement

MAX_GPUS = 1024


def place(
    job: JobSpec,
    platform: Platform,
    prices: Table,
    beliefs: Beliefs,
) -> Placed:
    """Place the job of a file. Raises InputError if it is a job of another platform."""
    if job.environment != platform.name:
        raise InputError(
            f"{job.name} is a job of another platform",
            got=job.environment,
            allowed=platform.name,
            fix="--platform with the document of its environment",
        )
    return any_gpu.place(job, platform, prices, beliefs)


def place_job(
    options: JobOptions,
    platform: Platform,
    prices: Table,
    beliefs: Beliefs,
) -> tuple[JobSpec, Placed]:
    """Return the job that answers a question, and its place.

    Takes the first shape with these GPUs that can be placed. Raises the error of the first shape if
    none can.
    """
    first_error: InputError | None = None
    for job in _list_shapes(options, platform):
        try:
            return job, placement.place(job, platform, prices, beliefs)
        except InputError as error:
            first_error = first_error or error
    assert first_error is not None, "there is at least one shape"
    raise first_error


def describe_choice(job: JobSpec, placed: Placed) -> dict[str, Any]:
    """Return the machines of a job, as fields of the JSON's choice."""
    offer = placed.offer
    assert offer is not None, "a question is about GPUs"
    return {
        "capacity": offer.capacity.value,
        "gpus": job.gpus,
        "nodes": job.nodes,
        "pools": [pool.name for pool in offer.pools],
        "stopped_after_hours": placed.limit_h,
    }


def make_body(job: JobSpec, placed: Placed) -> dict[str, Any]:
    """Return the answer as JSON. Without figures it has only the choice."""
    choice = describe_choice(job, placed)
    decision = placed.decision
    if decision is None:
        return {
            "schema": output.SCHEMA,
            "chosen": choice,
            "reason": placed.reason,
        }
    body = output.make_body(decision.question, decision.answer)
    body["chosen"] |= choice
    return body


def read_beliefs(options: JobOptions, churn: str, spot_wait: str) -> Beliefs:
    checkpoint_h = None
    if options.checkpoint not in ("queue", "none"):
        checkpoint_h = parse_duration(options.checkpoint, "checkpoint")
    return Beliefs(
        churn=churn,
        spot_wait_h=parse_duration(spot_wait, "Spot wait") if spot_wait else None,
        checkpoint_h=checkpoint_h,
    )


def describe_beliefs(beliefs: Beliefs) -> str:
    """Return a warning if the answer counts with what no job file says, or an empty text."""
    options: list[str] = []
    if beliefs.churn:
        options.append("--churn")
    if beliefs.spot_wait_h is not None:
        options.append("--spot-wait")
    if beliefs.checkpoint_h not in (None, CHECKPOINT_H):
        options.append("--checkpoint")
    if not options:
        return ""
    return f"new-job and submit decide without {', '.join(options)}: --capacity keeps a choice"


def _list_shapes(options: JobOptions, platform: Platform) -> list[JobSpec]:
    accelerator = parse_accelerator(options.gpu)
    between("GPUs", options.gpus, 1, MAX_GPUS, fix="give how many GPUs run at once")
    deadline_h = parse_duration(options.deadline, "deadline")
    is_batch = options.checkpoint == "queue"
    job = JobSpec(
        name="question",
        environment=platform.name,
        image="batch" if is_batch else "trainer",
        command=() if is_batch else ("python", "train.py"),
        gpus=f"1x{_shorten(accelerator)}",
        hours=parse_hours(options.hours),
        deadline_hours=0.0 if math.isinf(deadline_h) else deadline_h,
        resumes=options.checkpoint != "none",
        predictor="gpt" if is_batch else "",
        data="gs://bucket/items" if is_batch else "",
    )
    if options.nodes:
        return [_make_range(job, accelerator, options)]
    sizes = _list_sizes(accelerator, options.gpus, platform)
    if not is_batch:
        sizes.reverse()
    shapes: list[JobSpec] = []
    for size in sizes:
        gpus = f"{size}x{_shorten(accelerator)}"
        shapes.append(replace(job, gpus=gpus, nodes=options.gpus // size))
    return shapes


def _shorten(accelerator: str) -> str:
    """Return the name of a GPU as people type it."""
    return accelerator.removeprefix("nvidia-").removeprefix("tesla-")


def _make_range(job: JobSpec, accelerator: str, options: JobOptions) -> JobSpec:
    """Return an elastic gang."""
    max_nodes = node_range.parse(options.nodes, MAX_GPUS)[1]
    if options.gpus % max_nodes:
        raise InputError(
            "nodes of an elastic gang",
            got=f"{options.nodes} for {options.gpus} GPUs",
            allowed="as many GPUs on each node",
            fix="as in --gpus 8 --nodes 4..8",
        )
    gpus = f"{options.gpus // max_nodes}x{_shorten(accelerator)}"
    return replace(job, gpus=gpus, nodes=options.nodes)


def _list_sizes(accelerator: str, gpus: int, platform: Platform) -> list[int]:
    """Return the numbers of GPUs of the platform's machines that divide `gpus`, ascending."""
    sizes: set[int] = set()
    for offer in offers.list_offers(platform):
        if offer.accelerator == accelerator and gpus % offer.machine.gpus == 0:
            sizes.add(offer.machine.gpus)
    return sorted(sizes) or [gpus if gpus <= offers.MAX_GPUS_PER_NODE else 1]


def print_placement(
    job: JobSpec,
    placed: Placed,
    platform: Platform,
    *,
    is_question: bool,
    as_json: bool,
    answers: Sequence[Obtainability] = (),
) -> None:
    """Print where a job is placed on a platform.

    is_question: the job was made from a question, so that the command that writes it is of use.
    answers: how obtainable its machines are now.
    """
    if as_json:
        body = make_body(job, placed)
        body["now"] = [obtainability.make_body(answer) for answer in answers]
        print(json.dumps(finite(body), indent=2))
    else:
        _print_place(job, placed, platform, answers)
    for answer in answers:
        if answer.advice is None:
            print(f"now: {answer.text()}", file=sys.stderr)
    if is_question:
        print(f"Next: {_format_new_job(job)}", file=sys.stderr)


def ask_now(
    job: JobSpec,
    placed: Placed,
    platform: Platform,
    ask: Ask,
) -> list[Obtainability]:
    """Ask Google how obtainable the machines of a job are on Spot and on flex-start."""
    if placed.decision is None:
        return []
    answers: list[Obtainability] = []
    for capacity in (Capacity.SPOT, Capacity.FLEX_START):
        request = _make_request(job, placed, platform, capacity)
        if request is None:
            continue
        answer = obtainability.find("job", request, ask)
        answers.append(answer)
        if answer.advice is None:
            return answers  # the reason is the same for the next one
    return answers


def _make_request(
    job: JobSpec,
    placed: Placed,
    platform: Platform,
    capacity: Capacity,
) -> Request | None:
    fitting = offers.list_fitting(platform, job.accelerator, job.gpu_count, job.pods)
    for offer in fitting:
        if offer.capacity.product is capacity:
            pools = [pool.machine_type for pool in offer.pools]
            machine_types = list(dict.fromkeys(pools)) or [offer.machine.name]
            return obtainability.request_machines(
                platform,
                machine_types,
                capacity,
                job.pods,
                job.gpu_count,
            )
    return None


_COLUMNS = {
    Placement.SPOT: Capacity.SPOT,
    Placement.HYBRID: Capacity.SPOT,
    Placement.FLEX_START: Capacity.FLEX_START,
}
"""The capacity whose obtainability a row of the table shows."""


def _list_cells(answers: Sequence[Obtainability]) -> dict[Placement, str]:
    cells: dict[Placement, str] = {}
    for row, capacity in _COLUMNS.items():
        for answer in answers:
            if answer.capacity is capacity and answer.advice is not None:
                cells[row] = answer.advice.text()
    return cells


def _print_place(
    job: JobSpec,
    placed: Placed,
    platform: Platform,
    answers: Sequence[Obtainability],
) -> None:
    offer = placed.offer
    assert offer is not None, "a question is about GPUs"
    if job.sweep:
        size = f"{job.gpus} for each of {len(job.points)} points, {job.pods} at a time"
    elif job.nodes == 1:
        size = f"{job.gpus} on 1 node"
    else:
        size = f"{job.gpus} on {job.nodes} nodes"
    pools = " or ".join(pool.name for pool in offer.pools) or "auto-provisioned"
    sentence = f"In {platform.name}: {size}, {pools}; stopped after {placed.limit_h:g} h."
    decision = placed.decision
    if decision is None:
        capacity = offer.capacity.value
        reason = placed.reason
        print(reason if reason.startswith(capacity) else f"{capacity}: {reason}")
        print(sentence)
        return
    output.print_answer(
        decision.question,
        decision.answer,
        as_json=False,
        sentence=sentence,
        now=_list_cells(answers),
    )


def _format_new_job(job: JobSpec) -> str:
    """Return the command that writes a file of the job that was placed."""
    words = ["holdfast new-job NAME", f"--gpus {job.gpus}", f"--nodes {job.nodes}"]
    words.append(f"--hours {job.hours:g}h")
    if job.deadline_hours:
        words.append(f"--deadline {job.deadline_hours:g}h")
    if not job.resumes:
        words.append("--set resumes=false")
    if job.predictor:
        return " ".join([*words, "--set predictor=MODULE:FUNCTION --data gs://BUCKET/FOLDER"])
    return " ".join([*words, "--image IMAGE -- COMMAND"])
