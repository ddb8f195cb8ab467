"""A job that takes any of several GPUs, started by the real Kueue in the rendered queue."""

from dataclasses import replace

import pytest

from holdfast.clients.api import Api, Object
from holdfast.cost import prices
from holdfast.jobs.diagnose import job_snapshot
from holdfast.jobs.plan import any_gpu
from holdfast.jobs.render import manifests
from holdfast.jobs.submit import follower
from holdfast.manifests.render_context import RenderContext
from holdfast.vocabulary.pools import GPU_TAINT, LABEL_COMPUTE_CLASS
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.platforms import load
from workloads.library.tests.cluster.test_mover import apply_bodies, pods
from workloads.library.tests.jobs.test_job_file import own

EXAMPLE = load("example")


def render() -> list[Object]:
    job = own(
        name="either",
        gpus="any of 1xl4, 1xa100",
        command=("sleep", "9999"),
    )
    placed = any_gpu.place(job, EXAMPLE, prices.load())
    assert placed.gpu_choice is not None
    assert placed.gpu_choice.name == "any-1xl4-1xa100"
    return manifests.bodies(job, RenderContext(EXAMPLE), placed)


@pytest.mark.usefixtures("platform")
def test_the_job_runs_on_the_second_gpu_where_only_that_comes(world: World, api: Api) -> None:
    spot_l4 = next(pool for pool in EXAMPLE.pools if pool.name.startswith("spot-l4"))
    world.add_nodes(spot_l4, 1, labels={})  # a node of a pool, which is no node of the class
    with apply_bodies(api, render()) as body:
        name = body["metadata"]["name"]
        (pod,) = until("Kueue starts it", lambda: pods(api, name))
        assert pod["spec"]["nodeSelector"] == {LABEL_COMPUTE_CLASS: "any-1xl4-1xa100"}
        # As GKE makes it by the second rule of the class.
        node = replace(EXAMPLE.pool("spot-a100"), taints=(GPU_TAINT,))
        nodes = world.add_nodes(node, 1, labels={LABEL_COMPUTE_CLASS: "any-1xl4-1xa100"})
        (pod,) = until(
            "it runs",
            lambda: [pod for pod in pods(api, name) if pod["status"]["phase"] == "Running"],
        )
        assert [pod["spec"]["nodeName"]] == nodes
        labels = follower._find_node_labels(api, job_snapshot.find(api, name, "training"))
        assert labels["cloud.google.com/gke-accelerator"] == "nvidia-tesla-a100"
        assert follower._find_pool(labels, EXAMPLE) == "spot-a100"
