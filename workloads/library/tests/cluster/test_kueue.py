"""Jobs over quota wait and are admitted in their turn, and the dashboard's metrics are served: the
real Kueue.
"""

import base64
import json
import ssl
import urllib.error
import urllib.request

import pytest

from holdfast.vocabulary.kubernetes import KUEUE_ADMISSION_WAIT, KUEUE_PENDING
from holdfast.vocabulary.pools import Pool
from tests.cluster.sim import queues
from tests.cluster.sim.manager import OwnManager
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.workloads.manifests import rendered

pytestmark = pytest.mark.usefixtures("kueue")


def list_admitted_jobs(world: World) -> set[str]:
    jobs = world.api.items(world.path("jobs", "/apis/batch/v1"))
    return {job["metadata"]["name"] for job in jobs if not job["spec"]["suspend"]}


def read_metrics_token(world: World) -> str:
    """Returns the token in the rendered Secret that the collectors read."""
    docs = []
    for document in rendered.load_objects("example", "platform"):
        if document["metadata"]["name"] == "kueue-metrics":
            docs.append(document)
    for doc in docs:
        if doc["kind"] != "PodMonitoring":
            world.api.apply(world.api.path_of(doc), doc)
    secret = next(doc for doc in docs if doc["kind"] == "Secret")
    path = world.api.path_of(secret)
    return base64.b64decode(
        until("the token is there", lambda: world.api.get(path).get("data"))["token"]
    ).decode()


def metrics(cluster: OwnManager, token: str) -> str:
    assert cluster.host  # on kind it is a process of this host too
    config = json.loads((cluster.host.folder / "kueue.json").read_text())
    # As the rendered endpoint: the process signs its certificate itself.
    trust = ssl._create_unverified_context()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(
        f"https://{config['metrics']['bindAddress']}/metrics", headers=headers
    )
    with urllib.request.urlopen(request, context=trust, timeout=30) as answer:
        return answer.read().decode()


def test_a_job_over_quota_waits_until_one_ends(
    world: World, spot: Pool, cluster: OwnManager
) -> None:
    world.add_nodes(spot, 2)  # a node is free, so it is the quota that holds
    queues.lend(world, spot, 1)
    queues.submit(world, spot, "first")
    until("the first is admitted", lambda: list_admitted_jobs(world) == {"first"})
    queues.submit(world, spot, "second")
    world.wait_running(1)
    assert list_admitted_jobs(world) == {"first"}
    world.release()
    until("the turn of the second has come", lambda: "second" in list_admitted_jobs(world))
    selector = world.job("second")["spec"]["template"]["spec"]["nodeSelector"]
    assert selector.items() >= spot.selector().items(), "the flavor's selector was put in"
    # What the dashboard reads is served to the rendered token, and never without one.
    token = read_metrics_token(world)
    served = until(
        "an admission is counted",
        lambda: found if KUEUE_ADMISSION_WAIT in (found := metrics(cluster, token)) else "",
    )
    for name, suffix in ((KUEUE_ADMISSION_WAIT, "_bucket"), (KUEUE_PENDING, "")):
        assert f"{name}{suffix}{{" in served
    assert 'cluster_queue="' in served
    assert 'status="' in served
    with pytest.raises(urllib.error.HTTPError, match="401"):
        metrics(cluster, "")
    assert world.job("first")["status"].get("succeeded")
