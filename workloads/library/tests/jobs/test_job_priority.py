"""The priority of a job among those of its team."""

import itertools
from typing import Any

import pytest

from holdfast.mover.preemption_priority import MOST
from holdfast.support.errors import InputError
from holdfast.vocabulary.kubernetes import JOB_PRIORITIES, PRIORITIES, PRIORITY_FLEX, PRIORITY_SPOT
from workloads.library.tests.jobs.test_job_file import own
from workloads.library.tests.jobs.test_manifests import get_pod_spec, render

LABEL = "kueue.x-k8s.io/priority-class"


@pytest.mark.parametrize(
    "fields",
    [
        {"capacity": "spot"},
        {
            "nodes": 2,
            "gpus": "1xa100",
            "capacity": "spot",
        },
        {
            "nodes": 2,
            "gpus": "1xa100",
            "capacity": "queued",
        },
        {
            "nodes": "2..3",
            "gpus": "1xa100",
            "capacity": "spot",
        },
        {
            "nodes": 2,
            "sharded": True,
            "gpus": "1xa100",
            "capacity": "spot",
        },
        {
            "sweep": {"A": [1, 2]},
            "capacity": "spot",
        },
    ],
)
def test_a_priority_orders_the_job_and_leaves_its_pods_as_they_are(fields: dict[str, Any]) -> None:
    normal = render(own(**fields))
    high = render(own(**fields, priority="high"))
    assert LABEL not in normal[-1]["metadata"]["labels"]
    assert high[-1]["metadata"]["labels"][LABEL] == "job-high"
    assert high[-1]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    priority_class = get_pod_spec(normal)["priorityClassName"]
    assert get_pod_spec(high)["priorityClassName"] == priority_class


def test_no_boost_reaches_the_next_priority() -> None:
    values = [PRIORITIES[PRIORITY_SPOT].value, PRIORITIES[PRIORITY_FLEX].value]
    values += [priority.value for priority in JOB_PRIORITIES.values()]
    values.sort()
    distances = []
    for earlier, later in itertools.pairwise(values):
        distances.append(later - earlier)
    assert min(distances) > MOST


@pytest.mark.parametrize("fields", [{"priority": "highest"}, {"priority": "low", "gpus": "none"}])
def test_an_unknown_or_useless_priority_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(InputError, match="priority"):
        own(**fields)
