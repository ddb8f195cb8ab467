"""A gang of one's own on the real control plane: sent, sent again, replaced. The page of the first job evicts one."""

from copy import deepcopy

import pytest

from holdfast.clients.api import Api
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
def test_a_strangers_gang_that_runs_stays_if_it_is_sent_again_and_is_replaced_only_where_that_is_asked(
    world: World, api: Api
) -> None:
    """Somebody's script, by digest, as `new-job` writes it and `submit` sends it; the server fills in what it lacks."""
    list(platform.apply(api, RenderContext(EXAMPLE)))
    image = f"us-docker.pkg.dev/them/theirs/train@sha256:{'d' * 64}"
    job = OwnJob(
        name="theirs", environment="example", image=image, command=("torchrun", "train.py"), gpus="1xa100", nodes=2,
        capacity="spot", on_notice="wrap", env={"MODE": "fast"},
    )  # fmt: skip
    bodies = prepare(job, EXAMPLE).bodies
    name, path = bodies[-1]["metadata"]["name"], api.path_of(bodies[-1])
    world.add_nodes(EXAMPLE.pool("spot-a100"), 2)
    sent = submit.apply(api, bodies)
    assert [each.partition("/")[0] for each in sent] == ["NetworkPolicy", "PodDisruptionBudget", "JobSet"]
    try:
        before = until("both pods of the gang run", lambda: _running(api, name))
        assert [body["kind"] for body in running.compare(api, bodies)[0]] == ["NetworkPolicy", "PodDisruptionBudget"]
        changed, next_image = deepcopy(bodies), deepcopy(bodies)
        changed[-1]["spec"]["failurePolicy"]["maxRestarts"] = 99
        with pytest.raises(Stopped, match="--replace, which deletes") as refused:
            running.compare(api, changed)
        assert "maxRestarts" in refused.value.got or "immutable" in refused.value.got
        next_image[-1]["metadata"]["name"] = "theirs-00000000"
        with pytest.raises(Stopped, match=f"JobSet/{name} writes the same run, theirs"):
            running.compare(api, next_image)
        assert _running(api, name) == before, "nothing was touched"
        assert [running.compare(api, each, replace=True)[1] for each in (changed, next_image)] == [[path], [path]]
        running.end(api, path)
        left = api.items("/api/v1/namespaces/training/pods", labelSelector=f"holdfast.dev/job={name}")
        assert list(left) == [], "none of them writes beside the next job"
    finally:
        for body in bodies:
            if api.find(each := api.path_of(body)):
                api.delete(each, propagationPolicy="Background")


def _running(api: Api, name: str) -> list[str]:
    """The pods of the gang, once both run."""
    found = [pod["metadata"]["uid"] for pod in find(api, name, "training").phase("Running")]
    return sorted(found) if len(found) == 2 else []
