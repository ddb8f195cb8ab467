"""The public record itself as what Spot does: where it is followed, and what is chosen from so little of it."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast.contract.capacity import Placement
from holdfast.place import ask, choose, followed, gangs, hazard, outages, policies, prices
from holdfast.place.belief import World
from holdfast.place.job import Job
from holdfast.place.learned import Waited, Waits
from holdfast.place.runs import runs_of
from holdfast.place.simulate import simulate
from holdfast.place.traces import Trace
from workloads.library.tests.place.worlds import H100, L4, REGION, SHORT_WAITS

GANG = Job(accelerator=H100, gpus=64, hours=6, deadline_h=24)
WAITED = Waited(capacity="spot", gang=8, zone="", again=False, hours=(1.0,))


def believed(job: Job) -> World:
    return World(prices=prices.load(), churn=hazard.prior(job.accelerator))


def test_a_gang_is_told_what_the_record_would_have_done_to_it() -> None:
    there = believed(GANG).at(GANG, REGION)
    assert there.recorded is not None
    row = next(o for o in gangs.options(GANG, there, REGION) if o.policy == "wait for Spot")
    counts, gap_h = outages.record(), outages.clock()[1]
    late: list[float] = []
    for zone in (z for z in counts if z.startswith(f"{REGION}-")):
        trace = Trace(name=zone, gap_h=gap_h, up=counts[zone] >= 8)
        count = 1_000
        runs = runs_of(
            count, work_h=6, restart_h=GANG.restart_h, interval_h=0.15, checkpoint_h=GANG.checkpoint_h,
            path=np.zeros(count, np.int64), offset_h=np.linspace(0, trace.hours, count, endpoint=False),
        )  # fmt: skip
        late.append(float(np.mean(simulate(runs, trace.paths(), policies.WAIT).finish_h > 24)))
    assert row.late == pytest.approx(np.mean(late), abs=0.02)


@pytest.mark.parametrize(
    "stated",
    [
        {"churn": hazard.fixed(0.1)}, {"outages": SHORT_WAITS}, {"together": 2.0}, {"learned": Waits(rows=(WAITED,))},
        {"churn": hazard.measure(hazard.prior(H100), events=1, exposure_h=10)},
    ],
)  # fmt: skip
def test_what_is_stated_or_measured_comes_before_the_record(stated: dict[str, object]) -> None:
    there = replace(believed(GANG), **stated)  # type: ignore[arg-type]
    assert there.at(GANG, REGION) is there


@pytest.mark.parametrize(
    "change", [{"accelerator": L4}, {"gpus": 8 * 17}, {"batch": True}, {"hours": 400, "deadline_h": 900}]
)
def test_a_job_of_which_the_record_says_too_little_is_drawn(change: dict[str, object]) -> None:
    asked = replace(GANG, **change)  # type: ignore[arg-type]
    there = believed(asked)
    assert there.at(asked, REGION) is there


def test_zones_in_which_the_gang_was_next_to_never_are_not_followed() -> None:
    up = np.zeros(200, bool)
    up[:2] = True
    assert followed.of([Trace(name=f"{REGION}-a", gap_h=1.0, up=up)], REGION) is None


def test_the_job_moves_between_zones_of_one_region_only() -> None:
    one, other = (Trace(name=name, gap_h=1.0, up=np.arange(100) % 9 > 2) for name in (f"{REGION}-a", "europe-west1-b"))
    near = replace(other, name=f"{REGION}-b")
    found = [followed.of(each, REGION) for each in ([one, near], [one, other], [one])]
    assert [each is not None and each.any_zone is not None for each in found] == [True, False, False]


def test_with_a_deadline_nobody_is_sent_to_wait_for_spot_alone() -> None:
    """The first week of 16 nodes in us-east4 promised no lateness; in the second, 64 % were late."""
    asked = Job(accelerator=H100, gpus=128, hours=6, deadline_h=24)
    answer = ask.answer(asked, ask.Belief(), "us-central1")
    waits = [o for o in answer.options if o.placement is Placement.SPOT and o.late <= choose.LATE_ALLOWED]
    assert waits, "nothing to refuse"
    assert not [o for o in choose.keeping(asked, answer.options) if o.placement is Placement.SPOT]
    assert min(o.mean_usd for o in waits) < answer.chosen.mean_usd
    assert answer.chosen.placement is Placement.HYBRID
    assert answer.tie is None or answer.tie.placement is not Placement.SPOT
    # What that costs is stated.
    assert answer.regret > 0
    free = replace(asked, deadline_h=np.inf)
    assert ask.answer(free, ask.Belief(), "us-central1").chosen.placement is Placement.SPOT


@pytest.mark.parametrize("gpus", [8, 64, 128])
def test_the_printed_flip_is_on_the_side_of_the_rows(gpus: int) -> None:
    """Drawn lives would say that Spot stopped paying long ago, beside a row of Spot that is the cheapest."""
    asked = Job(accelerator=H100, gpus=gpus, hours=9)
    answer = ask.answer(asked, ask.Belief(), REGION)
    usd = {o.placement: o.mean_usd for o in reversed(answer.options) if not o.refused}
    least = min(o.mean_usd for o in answer.options if o.placement is Placement.SPOT)
    assert answer.limits is not None
    rival = min(usd[Placement.FLEX_START], usd[Placement.ON_DEMAND])
    assert (answer.limits.churn_per_hour > answer.world.churn.per_hour) == (least < rival)
