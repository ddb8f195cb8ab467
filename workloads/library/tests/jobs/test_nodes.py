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


def test_only_a_taint_of_a_pool_that_is_on_every_node_is_blamed(spot: Pool) -> None:
    body, bare = node(spot, "n"), node(spot, "bare")
    for left_out, taint in enumerate((SPOT_TAINT, GPU_TAINT)):
        kept = [t for i, t in enumerate(spot.tolerations()) if i != left_out]
        assert untolerated(pod(spot, tolerations=kept), body) == str(taint)
    body["spec"]["taints"].append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
    assert untolerated(pod(spot), body) == ""
    bare["spec"]["taints"] = []
    found = fit(pod(spot, tolerations=[]), [body, bare], [])
    assert (found.untolerated, found.selected, found.total) == (None, 2, 1)
