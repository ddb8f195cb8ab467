"""Which taint keeps a pod from a node, and how many GPUs are left: pure, so without a cluster."""

import pytest

from holdfast.clients.api import Object
from holdfast.contract.pools import GPU_TAINT, SPOT_TAINT, Pool, Taint
from holdfast.jobs.cluster_snapshot import fit, untolerated
from holdfast.lint.platform import tolerates
from tests import platforms
from tests.cluster.sim.nodes import node

TAINT = Taint(key="a", value="b")


@pytest.mark.parametrize(
    ("toleration", "answer"),
    [
        ({"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}, True),
        ({"key": "a", "value": "b"}, True),
        ({"key": "a", "value": "c"}, False),
        ({"key": "a", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "a", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "important", "operator": "Exists"}, False),
    ],
)
def test_a_toleration_is_judged_as_the_scheduler_judges_it(toleration: Object, answer: bool) -> None:
    assert tolerates(toleration, TAINT) is answer


@pytest.fixture(scope="module")
def spot() -> Pool:
    return next(p for p in platforms.load("example").pools if p.taints[:1] == (SPOT_TAINT,))


def pod(pool: Pool, gpus: int = 1, **more: object) -> Object:
    limits = {"nvidia.com/gpu": str(gpus)}
    spec = {"nodeSelector": pool.selector(), "tolerations": pool.tolerations(), **more}
    return spec | {"containers": [{"resources": {"limits": limits}}]}


def test_each_taint_of_a_pool_is_found_when_its_toleration_is_left_out_and_none_of_a_state(spot: Pool) -> None:
    body = node(spot, "n")
    for left_out, taint in enumerate((SPOT_TAINT, GPU_TAINT)):
        kept = [t for i, t in enumerate(spot.tolerations()) if i != left_out]
        assert untolerated(pod(spot, tolerations=kept), body) == str(taint)
    assert untolerated(pod(spot), body) == ""
    body["spec"]["taints"].append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
    assert untolerated(pod(spot), body) == ""


def test_free_gpus_are_counted_over_the_nodes_that_fit(spot: Pool) -> None:
    nodes = [node(spot, "a"), node(spot, "b")]
    running = {"spec": pod(spot) | {"nodeName": "a"}, "status": {"phase": "Running"}}
    ended = {"spec": pod(spot) | {"nodeName": "b"}, "status": {"phase": "Failed"}}
    found = fit(pod(spot), nodes, [running, ended])
    assert (found.selected, found.untolerated, found.wanted) == (2, None, 1)
    assert (found.free, found.total, found.most_free) == (1, 2, 1)


def test_one_open_node_is_enough_not_to_blame_a_taint(spot: Pool) -> None:
    bare = node(spot, "bare")
    bare["spec"]["taints"] = []
    found = fit(pod(spot, tolerations=[]), [node(spot, "tainted"), bare], [])
    assert found.untolerated is None
    assert found.total == 1
