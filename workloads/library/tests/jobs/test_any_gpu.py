"""A job that takes any of several GPUs: their order, its class, its queue, its price."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from holdfast.clients.api import Object
from holdfast.commands import app
from holdfast.cost import prices
from holdfast.jobs.file import file_text
from holdfast.jobs.file.job_fields import MAX_HOURS
from holdfast.jobs.file.job_file import JobSpec
from holdfast.jobs.plan import any_gpu, placement
from holdfast.jobs.submit import follower, prepared_job
from holdfast.manifests.render_context import RenderContext
from holdfast.support.errors import InputError
from tests.platforms import load, names, with_images
from workloads.library.tests.jobs.test_job_file import own
from workloads.library.tests.jobs.test_manifests import PRICES, get_pod_spec
from workloads.manifests import queueing

EXAMPLE = load("example")
CLASS = "cloud.google.com/compute-class"
QUEUE = "kueue.x-k8s.io/queue-name"


def own_any(**fields: Any) -> JobSpec:
    return own(**{"gpus": "any of 1xa100, 1xl4"} | fields)


def list_rendered(kind: str, environment: str = "example") -> dict[str, Object]:
    rendered: dict[str, Object] = {}
    for body in queueing.objects(RenderContext(load(environment))):
        if body["kind"] == kind:
            rendered[body["metadata"]["name"]] = body["spec"]
    return rendered


def test_the_cheapest_hour_is_first_without_speeds() -> None:
    placed = any_gpu.place(own_any(), EXAMPLE, PRICES)
    assert placed.gpu_choice is not None
    assert placed.gpu_choice.name == "any-1xl4-1xa100"
    assert placed.reason.startswith("spot, by price: 1xl4 ($")


def test_the_cheapest_step_is_first_with_all_speeds() -> None:
    fast = any_gpu.place(own_any(speeds={"a100": 40.0, "l4": 1.0}), EXAMPLE, PRICES)
    assert fast.gpu_choice is not None
    assert fast.gpu_choice.name == "any-1xa100-1xl4"
    assert "price per measured step: 1xa100 ($" in fast.reason
    slow = any_gpu.place(own_any(speeds={"a100": 1.1, "l4": 1.0}), EXAMPLE, PRICES)
    assert slow.gpu_choice is not None
    assert slow.gpu_choice.name == "any-1xl4-1xa100"
    partial = any_gpu.place(own_any(speeds={"a100": 40.0}), EXAMPLE, PRICES)
    assert partial.gpu_choice is not None
    assert partial.gpu_choice.name == "any-1xl4-1xa100"
    assert "by price:" in partial.reason


SPEEDS = {"a100": 9.5, "l4": 2.1}


def test_hours_are_those_on_the_fastest_gpu() -> None:
    job = own_any(speeds=SPEEDS, hours=200.0)
    slow_h = 200.0 * 9.5 / 2.1
    priced = any_gpu.place(job, EXAMPLE, PRICES)
    alone = placement.place(own(gpus="1xl4", hours=slow_h, capacity="spot"), EXAMPLE, PRICES)
    assert priced.limit_h >= alone.limit_h > 2 * slow_h
    unpriced = any_gpu.place(job, EXAMPLE, replace(PRICES, skus=()))
    assert unpriced.limit_h == pytest.approx(2 * slow_h)
    # A speed that is missing leaves the hours as they are.
    partial = any_gpu.place(own_any(speeds={"a100": 9.5}, hours=200.0), EXAMPLE, PRICES)
    assert partial.limit_h < priced.limit_h


@pytest.mark.parametrize("rounds", [1, 7])
def test_hours_on_a_slow_gpu_stay_within_what_a_job_may_state(rounds: int) -> None:
    sweep = {"SEED": [*range(rounds)]} if rounds > 1 else {}
    job = own_any(
        speeds={"a100": 1e6, "l4": 1.0},
        hours=10.0,
        sweep=sweep,
        **({"parallel": 1} if sweep else {}),
    )
    choices: list[any_gpu._Choice] = []
    for gpus in job.gpu_choices:
        choices.append(any_gpu._find_choice(job, gpus, EXAMPLE, PRICES))
    fast, slow = any_gpu._split_by_gpu(job, choices)
    assert fast.hours == 10.0
    assert 9_990 <= slow.hours * rounds <= MAX_HOURS


def test_work_that_a_slow_gpu_does_not_end_in_time_is_refused() -> None:
    job = own_any(speeds=SPEEDS, hours=20.0, max_hours=80.0)
    with pytest.raises(InputError, match=r"does not end before on 1xl4") as refused:
        any_gpu.place(job, EXAMPLE, PRICES)
    assert "90.48 h of work on 1xl4" in refused.value.got


def test_the_refusal_names_the_gpu_that_ends_too_late() -> None:
    with pytest.raises(InputError) as refused:
        any_gpu.place(own_any(hours=100.0, max_hours=101.0), EXAMPLE, PRICES)
    assert refused.value.got.startswith("max_hours 101, 1xl4, 100 h of work; ")


@pytest.mark.parametrize("fields", [{}, {"sweep": {"A": [1, 2]}}, {"on_notice": "drain"}])
def test_the_job_selects_a_class_that_the_platform_renders(fields: dict[str, Any]) -> None:
    document = YAML(typ="safe").load(file_text.dump(own_any(**fields)))
    job = file_text.parse(document, "job.yaml")
    prepared = prepared_job.prepare(job, with_images("example"))
    pod = get_pod_spec(prepared.bodies)
    assert pod["nodeSelector"] == {CLASS: "any-1xl4-1xa100"}
    assert prepared.bodies[-1]["metadata"]["labels"][QUEUE] == "any"
    rules = list_rendered("ComputeClass")["any-1xl4-1xa100"]["priorities"]
    types: list[str] = []
    for rule in rules:
        types.append(rule["gpu"]["type"])
        assert rule["spot"]
        assert rule["gpu"]["count"] == 1
    assert types == ["nvidia-l4"] * 3 + ["nvidia-tesla-a100"]
    flavor = list_rendered("ResourceFlavor")["any-1xl4-1xa100"]
    assert flavor["nodeLabels"] == pod["nodeSelector"]
    # The pod fits the smallest of the machines.
    limits = pod["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"
    assert limits["cpu"] == "6"


def test_the_most_expensive_machine_is_priced() -> None:
    prepared = prepared_job.prepare(own_any(), with_images("example"))
    (purchase,) = prepared_job.plan(prepared).purchases
    one_gpu_spot = set()
    for pool in EXAMPLE.pools:
        if pool.gpus_per_node == 1 and "spot" in pool.name:
            one_gpu_spot.add(pool.name)
    assert {*purchase.pools} == one_gpu_spot
    a100 = EXAMPLE.pool("spot-a100")
    quote = PRICES.quote(prices.MACHINE_TYPES[a100.machine_type], EXAMPLE.region, a100.capacity)
    assert quote is not None
    assert purchase.usd_per_hour == pytest.approx(quote.usd)


@pytest.mark.parametrize("environment", names())
def test_queue_lends_what_auto_provisioning_allows(environment: str) -> None:
    platform = load(environment)
    queue = list_rendered("ClusterQueue", environment)["any"]
    (group,) = queue["resourceGroups"]
    assert group["flavors"]
    for flavor in group["flavors"]:
        assert flavor["name"] in list_rendered("ComputeClass", environment)
        lent = int(flavor["resources"][0]["nominalQuota"])
        assert 0 < lent <= min(platform.auto_provisioning.values())


def test_a_receipt_prices_the_machine_that_came() -> None:
    labels = {
        CLASS: "any-1xl4-1xa100",
        "node.kubernetes.io/instance-type": "a2-highgpu-1g",
        "cloud.google.com/gke-nodepool": "nap-a2-highgpu-1g-spot-x1y2",
    }
    assert follower._find_pool(labels, EXAMPLE) == "spot-a100"
    assert follower._find_pool({"cloud.google.com/gke-nodepool": "mine"}, EXAMPLE) == "mine"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"gpus": "any of 1xl4, 1xh100"}, "no pool of example has this GPU"),
        ({"gpus": "any of 2xl4, 2xa100"}, "no Spot pool of example"),
        ({"gpus": "any of 1xl4, 2xa100"}, "any of"),
        ({"gpus": "any of 1xl4, 1xl4"}, "any of"),
        ({"gpus": "any of 1xl4"}, "gpus"),
        ({"gpus": "any of 1xl4, 1xnonsense"}, "unknown GPU"),
        ({"nodes": 2}, "nodes"),
        ({"nodes": "2..3"}, "nodes"),
        ({"capacity": "on-demand"}, "is for Spot"),
        ({"resumes": False}, "is for Spot"),
        ({"hours": 1.0, "deadline_hours": 9.0}, "deadline_hours"),
        ({"hours": 100.0, "max_hours": 101.0}, "nothing that example offers ends before max_hours"),
        ({"sweep": {"A": list(range(99))}, "parallel": 90}, "lends fewer GPUs of any kind"),
        ({"speeds": {"h100": 1.0}}, "speeds"),
        ({"speeds": {"l4": 0}}, "speeds"),
        ({"speeds": {"l4": "fast"}}, "speeds"),
        (
            {
                "gpus": "1xl4",
                "speeds": {"l4": 1.0},
            },
            "speeds",
        ),
    ],
)
def test_impossible_choices_are_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        any_gpu.place(own_any(**fields), EXAMPLE, PRICES)


def test_the_price_list_is_asked_for_one_gpu(tmp_path: Path) -> None:
    file = tmp_path / "either.yaml"
    file.write_text(file_text.dump(own_any(hours=4.0)))
    result = CliRunner().invoke(app, ["place", "--job", str(file), "--anywhere", "all"])
    assert isinstance(result.exception, InputError)
    assert "any of several GPUs" in str(result.exception)


def test_one_gpu_is_placed_as_before_and_classes_need_auto_provisioning() -> None:
    job = own(capacity="spot")
    placed = any_gpu.place(job, EXAMPLE, PRICES)
    assert placed == placement.place(job, EXAMPLE, PRICES)
    without = replace(EXAMPLE, auto_provisioning={})
    with pytest.raises(InputError, match="makes no machines of several GPUs"):
        any_gpu.place(own_any(), without, PRICES)
