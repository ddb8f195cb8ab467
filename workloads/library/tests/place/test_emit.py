"""The ComputeClass of an answer, and which answers a class cannot carry out."""

from holdfast.contract.capacity import Placement
from holdfast.place import advice, ask, show_place
from holdfast.place.job import Job
from workloads.library.tests.place.worlds import A100, H100, L4, REGION, by, world


def test_priorities_begin_with_the_answer_and_never_mix_capacities() -> None:
    asked = Job(accelerator=A100, gpus=16, hours=40)
    chosen = ask.choose(asked, advice.options(asked, world(0.5), REGION))
    rules = show_place.compute_class(asked, chosen)["spec"]["priorities"]
    assert chosen.placement is Placement.FLEX_START
    assert rules[0]["flexStart"] == {"enabled": True}
    assert rules[0]["maxRunDurationSeconds"] == 604_800
    assert len(rules) == 1
    assert all(rule["gpu"] == {"type": A100, "count": 8, "driverVersion": "latest"} for rule in rules)


def test_a_hybrid_is_spot_before_on_demand_and_comes_back() -> None:
    asked = Job(accelerator=L4, gpus=1, hours=40, deadline_h=60)
    rows = {o.policy: o for o in advice.options(asked, world(), REGION)}
    spec = show_place.compute_class(asked, rows["Spot, else on-demand at once"])["spec"]
    assert [rule.get("spot") for rule in spec["priorities"]] == [True, False]
    assert spec["activeMigration"] == {"optimizeRulePriority": True}


def test_spot_alone_says_that_waiting_was_priced() -> None:
    asked = Job(accelerator=L4, gpus=1, hours=40)
    body = show_place.compute_class(asked, by(advice.options(asked, world(), REGION))[Placement.SPOT])
    assert "holdfast.dev/ignore-HF323" in body["metadata"]["annotations"]
    assert [rule["spot"] for rule in body["spec"]["priorities"]] == [True]


def test_a_queue_with_a_way_out_is_never_late_and_states_how_long_it_waits() -> None:
    asked = Job(accelerator=H100, gpus=8, hours=100, deadline_h=104)
    options = advice.options(asked, world(0.5), REGION)
    plain, safe = (o for o in options if o.placement is Placement.FLEX_START)
    assert plain.late > 0.02
    assert safe.late == 0.0
    assert plain.mean_usd < safe.mean_usd < by(options)[Placement.ON_DEMAND].mean_usd
    assert ask.choose(asked, options) is safe
    rules = show_place.compute_class(asked, safe)["spec"]["priorities"]
    assert ["flexStart" in rule for rule in rules] == [True, False]
    assert rules[0]["capacityCheckWaitTimeSeconds"] == round((4 - 2 * asked.restart_h) * 3600)


def test_only_policies_that_leave_spot_in_time_need_the_mover() -> None:
    asked = Job(accelerator=A100, gpus=1, hours=40, deadline_h=60)
    needing = [o.policy for o in advice.options(asked, world(), REGION) if show_place.needs_mover(o)]
    assert len(needing) == 1 and needing[0].startswith("Spot, on-demand in time")
