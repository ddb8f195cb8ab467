"""A gang of one's own on the real control plane: sent, evicted, sent again, replaced. `try` is on the first job's page."""

from copy import deepcopy

import pytest

from holdfast.clients.api import Api, Object
from holdfast.contract.errors import Stopped
from holdfast.jobs import running, submit
from holdfast.jobs.job_file import OwnJob
from holdfast.jobs.job_snapshot import find
from holdfast.jobs.preparing import prepare
from holdfast.manifests.render_context import RenderContext
from tests import platforms
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.cluster.test_platform import cleared as cleared
from tests.cluster.test_platform import gke_kinds as gke_kinds
from workloads.operators import platform

EXAMPLE = platforms.with_images("example")


@pytest.mark.usefixtures("kueue", "gke_kinds", "cleared")
def test_a_strangers_gang_is_admitted_restarted_after_a_shutdown_and_not_charged(world: World, api: Api) -> None:
    """40 lines of somebody's script, by digest, as `new-job` writes them and `submit` sends them."""
    list(platform.apply(api, RenderContext(EXAMPLE)))
    image = f"us-docker.pkg.dev/them/theirs/train@sha256:{'d' * 64}"
    job = OwnJob(
        name="theirs", environment="example", image=image, command=("torchrun", "train.py"), gpus="1xa100", nodes=2,
        capacity="spot", on_notice="wrap", env={"MODE": "fast"},
    )  # fmt: skip
    prepared = prepare(job, EXAMPLE)
    world.add_nodes(EXAMPLE.pool("spot-a100"), 3)
    sent = submit.apply(api, prepared.bodies)
    assert [name.partition("/")[0] for name in sent] == ["NetworkPolicy", "PodDisruptionBudget", "JobSet"]
    name = prepared.bodies[-1]["metadata"]["name"]
    try:
        before = _running(api, name, set())
        _assert_sent_once(api, prepared.bodies, name, before)
        world.preempt([before[0]["spec"]["nodeName"]])
        after = _running(api, name, {pod["metadata"]["uid"] for pod in before})
        status = api.get(api.path_of(prepared.bodies[-1]))["status"]
        assert (status["restarts"], status.get("restartsCountTowardsMax", 0)) == (1, 0)
        _, replaced = running.compare(api, _changed(prepared.bodies), replace=True)
        assert replaced == [api.path_of(prepared.bodies[-1])]
        ranks = {pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] for pod in after}
        assert ranks == {"0", "1"}, "what NODE_RANK reads"
        running.end(api, replaced[0])
        left = api.items("/api/v1/namespaces/training/pods", labelSelector=f"holdfast.dev/job={name}")
        assert list(left) == [], "none of them writes beside the next job"
    finally:
        for body in prepared.bodies:
            if api.find(path := api.path_of(body)):
                api.delete(path, propagationPolicy="Background")


def _changed(bodies: list[Object]) -> list[Object]:
    changed = deepcopy(bodies)
    changed[-1]["spec"]["failurePolicy"]["maxRestarts"] = 99
    return changed


def _assert_sent_once(api: Api, bodies: list[Object], name: str, before: list[Object]) -> None:
    """Sent again as it is, a running job stays; changed, it is refused."""
    assert [body["kind"] for body in running.compare(api, bodies)[0]] == ["NetworkPolicy", "PodDisruptionBudget"]
    changed = _changed(bodies)
    with pytest.raises(Stopped, match="--replace, which deletes") as refused:
        running.compare(api, changed)
    assert "maxRestarts" in refused.value.got or "immutable" in refused.value.got
    next_image = deepcopy(bodies)
    next_image[-1]["metadata"]["name"] = "theirs-00000000"
    with pytest.raises(Stopped, match=f"JobSet/{name} writes the same run, theirs"):
        running.compare(api, next_image)
    assert running.compare(api, next_image, replace=True)[1] == [api.path_of(bodies[-1])]
    assert {pod["metadata"]["uid"] for pod in _running(api, name, set())} == {pod["metadata"]["uid"] for pod in before}


def _fresh(api: Api, name: str, old: set[str]) -> list[dict[str, object]]:
    """Two that run and are none of the old; nothing yet: none."""
    found = [pod for pod in find(api, name, "training").phase("Running") if pod["metadata"]["uid"] not in old]
    return found if len(found) == 2 else []


def _running(api: Api, name: str, old: set[str]) -> list[Object]:
    return until("both pods of the gang run", lambda: _fresh(api, name, old))
