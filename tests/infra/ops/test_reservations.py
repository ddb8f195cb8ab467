"""Reserved machines are planned by name, taken first, and priced by the environment's figure."""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.cost import prices
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.plan import placement
from holdfast.jobs.submit import prepared_job
from holdfast.manifests.render_context import RenderContext, yaml_text
from holdfast.platform import Platform, codec
from holdfast.support.checks import Status, examine
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import Capacity
from infra import describe
from infra.environments import Environment
from infra.environments.schema import Reservation
from infra.ops.doctor import OF_THE_PROJECT
from infra.rules import judge_environment
from infra.specs.pools import resources
from tests.infra.ops.google import Gcloud
from tests.infra.samples import EXAMPLE, a100
from workloads.manifests import queueing

OURS = Reservation(name="a100-q4", usd_per_hour=1.25)
IMAGE = f"us-docker.pkg.dev/p/r/train@sha256:{'a' * 64}"


def reserving(**fields: Any) -> Environment:
    zone = ("us-central1-a",)
    reservation = replace(OURS, **fields)
    group = a100(
        "reserved-a100",
        Capacity.RESERVED,
        zones=zone,
        reservation=reservation,
    )
    return replace(EXAMPLE, groups=(*EXAMPLE.groups, group))


def platform(**fields: Any) -> Platform:
    """Return the platform as commands read it, from its document."""
    return codec.parse(codec.text(describe.platform(reserving(**fields), {})), "it")


def own(**fields: Any) -> JobSpec:
    settings: dict[str, Any] = {
        "name": "mine",
        "environment": "example",
        "image": IMAGE,
        "command": ("python", "t.py"),
    }
    settings |= {"gpus": "1xa100"} | fields
    return JobSpec(**settings)


@pytest.mark.parametrize(
    ("fields", "planned"),
    [
        (
            {},
            {
                "consume_reservation_type": "SPECIFIC_RESERVATION",
                "values": ["a100-q4"],
            },
        ),
        ({"project": "acme-host"}, {"values": ["projects/acme-host/reservations/a100-q4"]}),
    ],
)
def test_its_pool_takes_the_reservation_that_is_named(
    fields: dict[str, Any], planned: dict[str, Any]
) -> None:
    environment = reserving(**fields)
    (pool,) = (r for r in resources(environment) if r.id == "pool-reserved-a100")
    config: Any = pool.arguments["node_config"]
    assert planned.items() <= config["reservation_affinity"].items()
    assert not judge_environment(environment), "and rules find jobs for it"


def test_reservation_comes_first_at_its_own_price() -> None:
    reserving_platform = platform()
    for job in (own(), own(hours=10.0), own(nodes=2), own(resumes=False)):
        placed = placement.place(job, reserving_platform, prices.load())
        assert placed.offer, placed.reason
        assert placed.offer.capacity is Capacity.RESERVED, placed.reason
    prepared = prepared_job.prepare(own(), reserving_platform)
    assert "kueue.x-k8s.io/queue-name: reserved" in yaml_text(prepared.bodies)
    assert prepared_job.plan(prepared).usd_per_hour == 1.25
    queues = set()
    for b in queueing.objects(RenderContext(reserving_platform)):
        if b["kind"] == "ClusterQueue":
            queues.add(b["metadata"]["name"])
    assert "reserved" in queues
    assert reserving_platform.queues["reserved"] == "reserved"


@pytest.mark.parametrize(
    ("days", "word"),
    [({"starts": "2099-01-01"}, "begins on 2099"), ({"ends": "2024-01-31"}, "ends on 2024-01-31")],
)
def test_calendar_mode_takes_a_job_only_within_its_days(days: dict[str, str], word: str) -> None:
    placed = placement.place(own(), platform(**days), prices.load())
    assert placed.offer
    assert placed.offer.capacity is not Capacity.RESERVED
    with pytest.raises(InputError, match=word):
        placement.place(own(capacity="reserved"), platform(**days), prices.load())


RESERVED = {
    "instanceProperties": {"machineType": "a2-highgpu-1g"},
    "count": "4",
}


def make_listing(name: str, **fields: Any) -> dict[str, Any]:
    zone = "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a"
    return {
        "name": name,
        "zone": zone,
        "specificReservation": RESERVED,
    } | fields


@pytest.mark.parametrize(
    ("found", "word"),
    [
        ([make_listing("a100-q4"), make_listing("theirs")], ""),
        ([], "a100-q4 is not in us-central1-a"),
        (
            [make_listing("a100-q4", specificReservation=RESERVED | {"count": "2"})],
            "holds 2 machines",
        ),
    ],
)
def test_doctor_refuses_what_is_not_there_or_too_small(
    gcloud: Gcloud,
    found: list[Any],
    word: str,
) -> None:
    gcloud.answer("compute reservations list", found)
    checks = [check for check in OF_THE_PROJECT if check[0] == "reservations"]
    (verdict,) = examine(reserving(), checks)
    assert (verdict.verdict is Status.OK) == (not word)
    assert word in verdict.found
