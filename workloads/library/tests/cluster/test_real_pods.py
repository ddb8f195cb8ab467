"""Our trainer as real pods of a kind cluster: evicted, drained, resumed. `make test-kind`. Batch
workers: node/test_images.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pytest_kubernetes.providers.base import AClusterManager

from holdfast.clients.api import Object
from holdfast.vocabulary.pools import Pool
from tests.cluster.sim import nodes, runnable
from tests.cluster.sim.event_lines import events, find_step_before
from tests.cluster.sim.jobsets import GROUP
from tests.cluster.sim.kind import HOST_MOUNT, KindManager
from tests.cluster.sim.runnable import Here
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import OWNER, World
from workloads.library.tests.cluster.objects import list_nodes, list_uids
from workloads.library.tests.node.lab import image
from workloads.library.tests.node.lab.config import IMAGE

APP = "app.kubernetes.io/name"
INDEX = "batch.kubernetes.io/job-completion-index"
PORT = 29500
TCP_LISTEN = "0A"
EVERY = 20
STEPS = 400
LIMIT_S = 240
APART = {  # while there is room: after the drain they share a node
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {"matchLabels": {APP: "train-gang"}},
}

pytestmark = [pytest.mark.kind, pytest.mark.timeout(900)]


@pytest.fixture
def kind(cluster: AClusterManager) -> KindManager:
    assert isinstance(cluster, KindManager), "selected by `make test-kind` only"
    return cluster


@pytest.fixture
def workers(kind: KindManager, world: World, spot: Pool) -> Iterator[list[str]]:
    """The cluster's real nodes as Spot nodes of this test, with our image on them."""
    tar = image.root_file_system()
    subprocess.run(
        ["docker", "import", "--change", 'CMD ["/bin/sh"]', "-", IMAGE],
        input=tar,
        check=True,
        timeout=120,
    )
    kind.load_image(IMAGE)
    labels = spot.node_labels() | world.selector
    for name in kind.workers:
        change = {
            "metadata": {"labels": labels},
            "spec": {"taints": nodes.taints(spot)},
        }
        world.api.merge(f"{nodes.NODES}/{name}", change)
    yield kind.workers
    for name in kind.workers:
        back = {
            "metadata": {"labels": dict.fromkeys(labels)},
            "spec": {"taints": None, "unschedulable": None},
        }
        world.api.merge(f"{nodes.NODES}/{name}", back)
    subprocess.run(
        ["docker", "rmi", IMAGE],
        check=True,
        timeout=120,
        stdout=subprocess.DEVNULL,
    )


@pytest.fixture
def no_dns(kind: KindManager) -> Iterator[Callable[[], None]]:
    """Leaves names without an answer until the test calls this, as a busy cluster's DNS does with
    a new pod.
    """

    def scale(replicas: int) -> None:
        kind.kubectl(
            [
                "scale",
                "deployment/coredns",
                "-n",
                "kube-system",
                f"--replicas={replicas}",
            ],
            as_dict=False,
        )

    scale(0)
    yield lambda: scale(1)
    scale(1)


@contextmanager
def evidence(kind: KindManager, world: World) -> Iterator[None]:
    """Adds what the cluster knows of the test's pods to an error; they are deleted afterwards."""
    questions = (
        ["describe", "pods"],
        ["get", "events"],
        [
            "logs",
            "--tail=30",
            "--prefix",
            f"--selector={APP}",
        ],
    )
    try:
        yield
    except (AssertionError, RuntimeError) as error:
        for question in questions:
            error.add_note(str(kind.kubectl([*question, "-n", world.name], as_dict=False)))
        raise


def here(kind: KindManager, world: World, folder: Path, **options: object) -> Here:
    folder.mkdir()
    folder.chmod(0o777)
    return Here(
        IMAGE,
        HOST_MOUNT,
        folder,
        {OWNER: world.name},
        events_file=folder / "events.jsonl",
        **options,
    )


def drain(kind: KindManager, node: str, app: str) -> None:
    only = f"--pod-selector={APP}={app}"
    options = ["--delete-emptydir-data", "--ignore-daemonsets", f"--timeout={LIMIT_S}s"]
    kind.kubectl(
        [
            "drain",
            node,
            only,
            *options,
        ],
        as_dict=False,
        timeout=LIMIT_S + 10,
    )


def test_gang_meets_by_its_service_and_resumes_after_evictions(
    kind: KindManager,
    world: World,
    workers: list[str],
    jobset: None,
    no_dns: Callable[[], None],
) -> None:
    folder = kind.pod_folder / "gang"
    place = here(
        kind,
        world,
        folder,
        checkpoints=folder / "ckpt",
        device="cpu",
        steps=STEPS,
        every=EVERY,
        data=folder / "data",
    )
    (folder / "data").mkdir()
    (folder / "data" / "text.txt").write_text(
        "a spot machine may be taken away at any time. " * 2_000
    )
    place.spec = {"topologySpreadConstraints": [APART]}
    gang = runnable.job(runnable.find_object("JobSet", "train-gang"), world.name, place)
    path = f"{world.path('jobsets', GROUP)}/{gang['metadata']['name']}"
    log = folder / "events.jsonl"
    world.api.apply(path, gang)

    with evidence(kind, world):
        first = world.wait_running(2, LIMIT_S)
        assert list_nodes(first) == set(workers), "its ranks meet across nodes"
        until(
            "the first pod opens the place although no name is known",
            lambda: listens(kind, first, PORT),
            LIMIT_S,
        )
        no_dns()
        until("a first checkpoint is committed", lambda: events(log, "commit"), LIMIT_S)
        assert world.evict(first[0]["metadata"]["name"]) == 201
        second = world.wait_running(2, LIMIT_S, old=list_uids(first))
        commits_before = len(events(log, "commit"))
        until("it commits again", lambda: len(events(log, "commit")) > commits_before, LIMIT_S)
        node = second[0]["spec"]["nodeName"]
        drain(kind, node, "train-gang")
        third = world.wait_running(2, LIMIT_S, old=list_uids(first + second))
        assert node not in list_nodes(third)
        until(
            "the gang is done",
            lambda: world.api.get(path)["status"].get("terminalState") == "Completed",
            LIMIT_S,
        )

    steps: set[int] = set()
    for line in events(log, "restore"):
        steps.add(line["step"])
        assert line["step"] == find_step_before(log, line["t"])
    assert len(steps - {0}) == 2, "resumed twice"
    assert events(log, "exit")[-1]["step"] == STEPS
    assert world.api.get(path)["status"]["restarts"] == 2


def listens(kind: KindManager, pods: list[Object], port: int) -> bool:
    """Returns whether the pod of index 0 listens on the port."""
    (meta,) = (p["metadata"] for p in pods if p["metadata"]["labels"][INDEX] == "0")
    command = [
        "exec",
        meta["name"],
        "-n",
        meta["namespace"],
        "--",
        "cat",
        "/proc/net/tcp",
        "/proc/net/tcp6",
    ]
    suffix = f":{port:04X}"
    for line in str(kind.kubectl(command, as_dict=False)).splitlines():
        row = line.split()
        if row[3] == TCP_LISTEN and row[1].endswith(suffix):
            return True
    return False
