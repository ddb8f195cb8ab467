"""The manifests and the picture that `place` writes."""

import xml.etree.ElementTree as ET

from holdfast.contract.capacity import Placement
from holdfast.place import advice, choose, emit, plot
from holdfast.place.job import Job
from workloads.library.tests.place.worlds import A100, L4, REGION, by, world


def test_emitted_priorities_begin_with_the_answer_and_never_mix_capacities() -> None:
    asked = Job(accelerator=A100, gpus=16, hours=40)
    options = advice.options(asked, world(0.5), REGION)
    chosen = choose.choose(asked, options)
    spec = emit.compute_class(asked, chosen)["spec"]
    assert chosen.placement is Placement.FLEX_START
    assert spec["priorities"][0]["flexStart"] == {"enabled": True}
    assert spec["priorities"][0]["maxRunDurationSeconds"] == 604_800
    assert len(spec["priorities"]) == 1
    assert all(rule["gpu"] == {"type": A100, "count": 8, "driverVersion": "latest"} for rule in spec["priorities"])


def test_a_hybrid_is_emitted_as_spot_before_on_demand() -> None:
    asked = Job(accelerator=L4, gpus=1, hours=40, deadline_h=60)
    options = advice.options(asked, world(), REGION)
    rules = emit.compute_class(asked, by(options)[Placement.HYBRID])["spec"]["priorities"]
    assert [rule.get("spot") for rule in rules] == [True, False]


def test_emitted_pods_cite_their_rule_and_checkpoint_more_often_while_young() -> None:
    asked = Job(accelerator=A100, gpus=16, hours=40)
    chosen = by(advice.options(asked, world(), REGION))[Placement.SPOT]
    body = emit.pod(asked, world(), chosen, chosen)
    # The matrix sends gangs to flex-start; a pod that selects Spot must not cite that.
    assert body["metadata"]["annotations"] == {"holdfast.dev/placement-rule": "training"}
    assert body["holdfast"]["nodes"] == 2
    assert body["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}
    ages = [step["intervalSeconds"] for step in body["holdfast"]["checkpoint"]["byNodeAge"]]
    assert ages == sorted(ages)
    assert ages[0] < body["holdfast"]["checkpoint"]["intervalSeconds"] < ages[-1]


def test_the_plot_is_an_svg_with_every_option_described_in_words() -> None:
    asked = Job(accelerator=A100, gpus=8, hours=40, deadline_h=72)
    options = advice.options(asked, world(), REGION)
    root = ET.fromstring(plot.svg(options, options[1], "A & B", 72))
    space = {"s": "http://www.w3.org/2000/svg"}
    described = root.find("s:desc", space)
    assert described is not None
    assert all(f"{o.placement.value} (" in str(described.text) for o in options)
    assert any(text.text == "deadline" for text in root.iterfind("s:text", space))
    assert len(root.findall("s:rect", space)) == 2  # the chosen one: mark and legend
