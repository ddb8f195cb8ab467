"""An elastic and a sharded gang as rendered, on two real kubelets: one Spot shutdown, and what an
undisturbed run computes.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from holdfast.clients.api import Object
from holdfast.jobs.diagnose.job_snapshot import get_place
from holdfast.jobs.render.pod_parts import RANKS
from holdfast.vocabulary.environment import (
    ENV_CHECKPOINTS,
    ENV_GANG_MIN_NODES,
    ENV_GANG_NODES,
    ENV_RUN,
)
from holdfast.vocabulary.pools import GPU_RESOURCE, LABEL_ZONE
from tests import platforms
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from workloads.library.tests.node.lab import as_rendered, google, names, seen
from workloads.library.tests.node.lab.google import Bucket
from workloads.library.tests.node.lab.images import Rendered
from workloads.library.tests.node.lab.lab import Lab, Machine

EXAMPLE = platforms.load("example")
GANG = "train-elastic"
NODES = 2
STEPS = 400
SHARDS = 12
LONG = 1500
"""Steps of a gang that goes on while another machine boots."""
LIMIT_S = 420
SHARDED = ["python", "-m", "holdfast.training.examples.sharded_fsdp2"]

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture
def bucket(lab: Lab) -> Iterator[Bucket]:
    with google.bucket(lab, EXAMPLE.buckets["checkpoints"]) as storage, names.served(lab):
        yield storage


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    (path / "text.txt").write_text("a spot machine may be taken away at any time. " * 2_000)
    return path


@pytest.fixture
def machines(lab: Lab, world: World, rendered: Rendered) -> dict[str, Machine]:
    """Boots two machines, and applies all that pods of a gang need to start on them."""
    rendered.apply(lab.api, "PriorityClass")
    lab.pull(rendered.registry.host, rendered.images("trainer"))
    world.api.create(world.path("serviceaccounts"), {"metadata": {"name": "trainer"}})
    service = rendered.find("Service", GANG)
    world.api.create(
        world.path("services"),
        service | {"metadata": service["metadata"] | {"namespace": world.name}},
    )
    return {name: boot(lab, name) for name in ("spot-a", "spot-b")}


def boot(lab: Lab, name: str) -> Machine:
    """Boots a machine with a GPU, so that it holds one node of the gang; all are in one zone."""
    machine = lab.boot(name, EXAMPLE.pool("spot-a100"), gpu=True)
    lab.api.merge(f"/api/v1/nodes/{name}", {"metadata": {"labels": {LABEL_ZONE: "us-central1-a"}}})
    return machine


def gang(
    rendered: Rendered,
    world: World,
    bucket: Bucket,
    data: Path,
    *,
    run: str,
    nodes: int,
) -> Object:
    """Returns the rendered Job of this number of members.

    Shards and the exact sum make its runs comparable.
    """
    env = {"STORAGE_EMULATOR_HOST": bucket.url, "OMP_NUM_THREADS": "1"}
    env |= {
        ENV_GANG_NODES: str(nodes),
        ENV_GANG_MIN_NODES: "1",
    }
    options = {
        "--run": run,
        "--steps": str(STEPS),
        "--set": f"shards={SHARDS}",
        "--device": "cpu",
        "--every": "50",
    }
    here = as_rendered.Lab(
        data=data,
        env=env,
        options=options,
        host_network=False,
    )
    doc = as_rendered.job(rendered.find("Job", GANG), world.name, here, nodes)
    (container,) = doc["spec"]["template"]["spec"]["containers"]
    container["command"].extend(["--set", "exact=true"])
    for amounts in container["resources"].values():
        amounts[GPU_RESOURCE] = "1"
    return doc


def remove(world: World, doc: Object) -> None:
    """Removes the Job with its pods: the next gang has its name, by which nodes find each other."""
    path = f"{world.path('jobs', '/apis/batch/v1')}/{doc['metadata']['name']}"
    world.api.delete(path, propagationPolicy="Foreground")
    until("the first gang is gone", lambda: not world.api.find(path) and not world.pods(), LIMIT_S)


def list_sizes(machine: Machine, pod: Object) -> list[int]:
    """Returns the sizes of the gang whenever this pod led it."""
    return [event["nodes"] for event in seen.events(machine, pod, "resized")]


def digest(lab: Lab, world: World, doc: Object) -> str:
    """Returns the digest of the run's end, from whichever of its pods saw it."""
    name = doc["metadata"]["name"]
    assert world.wait_condition(name, LIMIT_S) in ("Complete", "SuccessCriteriaMet")
    pods = []
    for pod in world.pods():
        if pod["metadata"]["labels"]["job-name"] == name:
            pods.append(pod)
    ends: list[str] = []
    for pod in pods:
        machine = lab.machines.get(pod["spec"].get("nodeName", ""))
        if machine:
            exits = seen.events(machine, pod, "exit")
            ends += [event["digest"] for event in exits if "digest" in event]
    (value,) = set(ends)
    return value


def test_other_node_continues_and_takes_the_replacement_in_bit_exact(
    lab: Lab,
    world: World,
    rendered: Rendered,
    machines: dict[str, Machine],
    bucket: Bucket,
    data: Path,
) -> None:
    disturbed = gang(
        rendered,
        world,
        bucket,
        data,
        run="disturbed",
        nodes=NODES,
    )
    lead, other = start_pods(world, disturbed)
    survivor = machines[lead["spec"]["nodeName"]]
    until("both train", lambda: list_sizes(survivor, lead)[-1:] == [NODES], LIMIT_S)
    until(
        "a first checkpoint is committed",
        lambda: bucket.names(f"{EXAMPLE.default_run}/disturbed/"),
        LIMIT_S,
    )

    seen.preempted(lab, machines[other["spec"]["nodeName"]], other)
    until("the other trains alone", lambda: list_sizes(survivor, lead)[-1:] == [1], LIMIT_S)
    boot(lab, "spot-c")
    until(
        "the replacement is a member", lambda: list_sizes(survivor, lead)[-1:] == [NODES], LIMIT_S
    )
    disturbed_bits = digest(lab, world, disturbed)
    # A node that a busy machine holds up is met again at the same size.
    assert [size for size, _ in groupby(list_sizes(survivor, lead))] == [NODES, 1, NODES], (
        "nothing else happened to it"
    )
    check_pod_stayed(world, lead)
    assert not world.job(disturbed["metadata"]["name"])["status"].get("failedIndexes")

    remove(world, disturbed)
    quiet = gang(
        rendered,
        world,
        bucket,
        data,
        run="undisturbed",
        nodes=1,
    )
    world.api.create(world.path("jobs", "/apis/batch/v1"), quiet, fieldValidation="Strict")
    assert digest(lab, world, quiet) == disturbed_bits


def make_sharded_job(
    rendered: Rendered,
    world: World,
    bucket: Bucket,
    data: Path,
    run: str,
    *,
    nodes: int = NODES,
    min_nodes: int = NODES,
    steps: int = STEPS,
) -> Object:
    """Returns the Job that runs the sharded example in the pods of the rendered gang.

    With `min_nodes` below `nodes` the gang shrinks and grows.
    """
    doc = gang(rendered, world, bucket, data, run=run, nodes=nodes)
    (container,) = doc["spec"]["template"]["spec"]["containers"]
    url = f"gs://{bucket.name}/{EXAMPLE.default_run}"
    container["command"] = [
        *RANKS,
        "1",
        "--sharded",
        "--min-nodes",
        str(min_nodes if min_nodes < nodes else 0),
        "--",
        *SHARDED,
        url,
        str(steps),
    ]
    variables = {
        ENV_RUN: run,
        ENV_CHECKPOINTS: url,
    }
    container["env"] = [entry for entry in container["env"] if entry["name"] not in variables]
    container["env"] += [{"name": name, "value": value} for name, value in variables.items()]
    return doc


def losses(machine: Machine, pod: Object) -> list[str]:
    """Returns the line of each step, in the order in which they were done."""
    lines: list[str] = []
    for line in seen.printed(machine, pod):
        if line.startswith("step "):
            lines.append(line)
    return lines


def until_step(machine: Machine, pod: Object, step: int) -> None:
    """Waits for a step; fails with the end of what the pod printed."""
    try:
        until(f"step {step}", lambda: len(losses(machine, pod)) >= step, LIMIT_S)
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *seen.printed(machine, pod)[-30:]])) from error


def restores(machine: Machine, pod: Object) -> list[str]:
    """Returns the line of each restore, in the order in which they were done."""
    lines: list[str] = []
    for line in seen.printed(machine, pod):
        if "restored step" in line:
            lines.append(line)
    return lines


def start_pods(world: World, doc: Object) -> list[Object]:
    """Creates the Job and returns its running pods, in the order of their places."""
    world.api.create(world.path("jobs", "/apis/batch/v1"), doc, fieldValidation="Strict")
    return sorted(world.wait_running(doc["spec"]["completions"], LIMIT_S), key=get_place)


def complete(world: World, doc: Object) -> None:
    """Waits until the Job is complete."""
    ends = ("Complete", "SuccessCriteriaMet")
    assert world.wait_condition(doc["metadata"]["name"], LIMIT_S) in ends


def check_pod_stayed(world: World, pod: Object) -> None:
    """Checks that a node went on in its pod and in its container."""
    after = world.pod(pod["metadata"]["name"])
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0


def check_steps(lines: list[str], steps: int) -> None:
    """Checks that the lines are those of all steps, each of them once."""
    numbers = [int(line.split()[1]) for line in lines]
    assert numbers == list(range(1, steps + 1)), "a step is lost, or was done twice"


def test_sharded_gang_gets_a_lost_shard_from_its_neighbors_memory(
    lab: Lab,
    world: World,
    rendered: Rendered,
    machines: dict[str, Machine],
    bucket: Bucket,
    data: Path,
) -> None:
    disturbed = make_sharded_job(rendered, world, bucket, data, "disturbed")
    lead, other = start_pods(world, disturbed)
    survivor = machines[lead["spec"]["nodeName"]]
    until_step(survivor, lead, STEPS // 20)
    seen.preempted(lab, machines[other["spec"]["nodeName"]], other)
    done = len(losses(survivor, lead))
    assert done < STEPS, "the notice came while they trained"
    boot(lab, "spot-c")
    complete(world, disturbed)
    check_pod_stayed(world, lead)
    (source,) = restores(survivor, lead)
    assert "from the memory of nodes" in source
    each_once = losses(survivor, lead)
    check_steps(each_once, STEPS)

    remove(world, disturbed)
    quiet = make_sharded_job(rendered, world, bucket, data, "undisturbed")
    pods = start_pods(world, quiet)
    complete(world, quiet)
    machine = lab.machines[pods[0]["spec"]["nodeName"]]
    assert losses(machine, pods[0]) == each_once


def test_sharded_gang_goes_on_with_one_node_and_grows_back(
    lab: Lab,
    world: World,
    rendered: Rendered,
    machines: dict[str, Machine],
    bucket: Bucket,
    data: Path,
) -> None:
    disturbed = make_sharded_job(
        rendered, world, bucket, data, "disturbed", min_nodes=1, steps=LONG
    )
    lead, other = start_pods(world, disturbed)
    survivor = machines[lead["spec"]["nodeName"]]
    until_step(survivor, lead, STEPS // 20)
    seen.preempted(lab, machines[other["spec"]["nodeName"]], other)
    until_step(survivor, lead, len(losses(survivor, lead)) + 5)
    assert len(restores(survivor, lead)) == 1, "one node trains alone"
    boot(lab, "spot-c")
    until("the gang has grown", lambda: len(restores(survivor, lead)) == 2, LIMIT_S)
    assert len(losses(survivor, lead)) < LONG, "it grew while it trained"
    complete(world, disturbed)
    check_pod_stayed(world, lead)
    for source in restores(survivor, lead):
        assert "from the memory of nodes" in source
    each_once = losses(survivor, lead)
    check_steps(each_once, LONG)

    remove(world, disturbed)
    quiet = make_sharded_job(
        rendered, world, bucket, data, "undisturbed", nodes=1, min_nodes=1, steps=LONG
    )
    pods = start_pods(world, quiet)
    complete(world, quiet)
    machine = lab.machines[pods[0]["spec"]["nodeName"]]
    assert losses(machine, pods[0]) == each_once, "the same bits for other numbers of nodes"
