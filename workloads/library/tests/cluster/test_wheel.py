"""A sweep and a job that takes any of several GPUs, by the commands of the library as pip installs
it, with a kubeconfig and nothing else.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pytest_kubernetes.providers.base import AClusterManager

from holdfast.clients.api import Api, Object
from holdfast.jobs.diagnose.job_snapshot import get_place
from holdfast.manifests.render_context import RenderContext
from holdfast.vocabulary.kubernetes import LABEL_NAME
from holdfast.vocabulary.pools import GPU_TAINT, LABEL_COMPUTE_CLASS
from tests import platforms
from tests.cluster.sim import pods
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.cluster.test_platform import gke_kinds as gke_kinds
from tests.cluster.test_platform import platform_cleanup as platform_cleanup
from workloads.library.tests.cluster.test_first_job_page import Watch, ran
from workloads.library.tests.cluster.test_first_job_page import jobs_end as jobs_end
from workloads.library.tests.cluster.test_jobs_page import environment as environment
from workloads.operators import platform

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("kueue", "gke_kinds", "platform_cleanup", "jobs_end"),
]
EXAMPLE = platforms.with_images("example")
IMAGE = (
    "us-docker.pkg.dev/team/repo/train"
    "@sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
)
PODS = "/api/v1/namespaces/training/pods"
POINTS = 20
AT_ONCE = 5
LOST = 3
Run = Callable[..., str]


@pytest.fixture
def run(environment: Path, tmp_path: Path, cluster: AClusterManager, api: Api) -> Run:
    """Runs a command line in a folder that holds nothing but a kubeconfig."""
    list(platform.apply(api, RenderContext(EXAMPLE)))
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copy(str(cluster.kubeconfig), folder / "kubeconfig")
    variables = {
        "PATH": os.pathsep.join([str(environment), os.environ["PATH"]]),
        "HOME": str(folder),
        "KUBECONFIG": "kubeconfig",
        "PYTHONUNBUFFERED": "1",
    }

    def run_line(line: str, watch: Watch = lambda _: None) -> str:
        return ran(line, folder, variables, watch)

    return run_line


def list_pods(api: Api, run_name: str, phase: str = "") -> list[Object]:
    selected: list[Object] = []
    for pod in api.items(PODS, labelSelector=f"{LABEL_NAME}={run_name}"):
        if phase in ("", pod["status"].get("phase")):
            selected.append(pod)
    return selected


def note_points(api: Api, points: dict[str, int]) -> None:
    """Adds the point of each pod, by the pod's uid."""
    for pod in list_pods(api, "search"):
        points[pod["metadata"]["uid"]] = get_place(pod)


def test_sweep_survives_three_evictions(run: Run, api: Api, world: World) -> None:
    pool = EXAMPLE.pool("spot-l4-g2-standard-8")
    world.add_nodes(pool, AT_ONCE)
    seeds = ",".join(map(str, range(POINTS)))
    run(
        f"holdfast new-job search --image {IMAGE} --gpus 1xl4 --capacity spot"
        f" --set sweep.SEED={seeds} --set parallel={AT_ONCE} -- python train.py"
    )
    assert "applied Job/search" in run("holdfast submit search.yaml --yes")
    until("five points run", lambda: len(list_pods(api, "search", "Running")) == AT_ONCE)
    # The control plane removes pods of nodes that have been gone for a minute.
    points: dict[str, int] = {}
    note_points(api, points)
    world.preempt(world.nodes[:LOST])
    evicted = {get_place(pod) for pod in list_pods(api, "search", "Failed")}
    assert len(evicted) == LOST
    world.add_nodes(pool, LOST)
    until(
        "the evicted points run again", lambda: len(list_pods(api, "search", "Running")) == AT_ONCE
    )
    assert "evicted 3, crashed 0" in run("holdfast explain search")

    def has_ended() -> bool:
        for pod in list_pods(api, "search", "Running"):
            pods.end(api, pod)
        note_points(api, points)
        return len(list_pods(api, "search", "Succeeded")) == POINTS

    until("all points ended", has_ended)
    # While an evicted point waits for its restart, the next one may start.
    starts = Counter(points.values())
    assert {point for point, count in starts.items() if count > 1} == evicted
    followed = run("holdfast explain search --follow")
    assert "Complete" in followed
    assert "with 3 evictions" in followed


def test_job_gets_the_second_gpu_where_the_first_does_not_come(
    run: Run, api: Api, world: World
) -> None:
    run(f"holdfast new-job either --image {IMAGE} --gpus 'any of 1xl4, 1xa100' -- python train.py")
    assert "applied Job/either" in run("holdfast submit either.yaml --yes")
    (pod,) = until("Kueue starts it", lambda: list_pods(api, "either", "Pending"))
    assert pod["spec"]["nodeSelector"] == {LABEL_COMPUTE_CLASS: "any-1xl4-1xa100"}
    # As GKE makes it by the second rule of the class.
    second = replace(EXAMPLE.pool("spot-a100"), taints=(GPU_TAINT,))
    nodes = world.add_nodes(second, 1, labels={LABEL_COMPUTE_CLASS: "any-1xl4-1xa100"})
    (pod,) = until("it runs", lambda: list_pods(api, "either", "Running"))
    assert [pod["spec"]["nodeName"]] == nodes

    def let_it_end(text: str) -> None:
        if text.startswith("Running"):
            pods.end(api, pod)

    followed = run("holdfast explain either --follow", let_it_end)
    assert "nvidia-tesla-a100" in followed
    assert "Complete" in followed
