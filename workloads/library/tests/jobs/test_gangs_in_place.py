"""What a job of several nodes becomes whose other pods stay when one is lost."""

from typing import Any

import pytest

from holdfast.contract.capacity import Capacity
from holdfast.jobs import placing, submit
from holdfast.jobs.pod_parts import RANKS
from tests.platforms import load
from workloads.library.tests.jobs.test_job_file import own
from workloads.library.tests.jobs.test_rendered import PRICES, made, pod_of


def test_an_elastic_gang_has_its_service_its_budget_and_a_price_capped_at_its_most_nodes() -> None:
    bodies = made(own(gpus="1xa100", nodes="2..4", command=("python", "mine.py"), restarts=5))
    assert [body["kind"] for body in bodies] == ["Service", "NetworkPolicy", "PodDisruptionBudget", "Job"]
    service, _, budget, job = bodies
    spec, pod = job["spec"], pod_of(bodies)
    assert (spec["completions"], spec["parallelism"], spec["backoffLimitPerIndex"]) == (4, 4, 5)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "spot" and spec["suspend"]
    assert budget["spec"]["minAvailable"] == 2 and spec["successPolicy"]["rules"] == [{"succeededCount": 1}]
    assert pod["subdomain"] == service["metadata"]["name"] and pod["priorityClassName"] == "spot-workload-low"
    env = {each["name"]: each.get("value", "") for each in pod["containers"][0]["env"]}
    assert (env["HOLDFAST_GANG_NODES"], env["HOLDFAST_GANG_MIN_NODES"]) == ("4", "2")
    assert pod["containers"][0]["command"] == ["python", "mine.py"]
    several = made(own(gpus="1xa100", nodes="2..4", command=("python", "mine.py"), processes=3))
    assert pod_of(several)["containers"][0]["command"] == [*RANKS, "3", "--", "python", "mine.py"]
    (bought,) = submit.plan(bodies, load("example"), PRICES, 0.01).purchases
    (alone,) = submit.plan(made(own(gpus="1xa100")), load("example"), PRICES).purchases
    assert bought.usd_per_hour == pytest.approx(4 * (alone.usd_per_hour or 0)) and bought.gpus == 4
    assert submit.plan(bodies, load("example"), PRICES, 0.01).refusals


def test_a_sharded_gang_keeps_its_pods_under_a_launcher_and_is_drained_one_by_one() -> None:
    program = ("python", "mine.py")
    fields: dict[str, Any] = {"gpus": "1xa100", "nodes": 4, "sharded": True, "command": program}
    bodies = made(own(**fields, wait_hours=2.0, state="40Gi"))
    assert [body["kind"] for body in bodies] == ["Service", "NetworkPolicy", "PodDisruptionBudget", "Job"]
    _, policy, budget, job = bodies
    spec, pod = job["spec"], pod_of(bodies)
    assert (spec["completions"], spec["parallelism"], spec["successPolicy"]["rules"]) == (4, 4, [{"succeededCount": 1}])
    assert budget["spec"]["minAvailable"] == 3 and policy["spec"]["ingress"][0]["ports"][0]["endPort"] == 65_535
    labels, env = spec["template"]["metadata"]["labels"], pod["containers"][0]["env"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert {each["name"]: each.get("value") for each in env}.items() >= {
        "HOLDFAST_GANG_NODES": "4",
        "NNODES": "4",
    }.items()
    launcher = [*RANKS, "1", "--sharded", "--copies", "1", "--wait", "7200"]
    assert pod["containers"][0]["command"] == [*launcher, "--", *program]
    assert pod["terminationGracePeriodSeconds"] == 15 and pod["priorityClassName"] == "spot-workload-low"
    assert job["spec"]["template"]["metadata"]["annotations"]["holdfast.dev/placement-rule"] == "sharded"
    placed = placing.place(own(**fields), load("example"), PRICES)
    assert placed.rule == "sharded" and placed.offer and placed.offer.capacity is Capacity.SPOT
