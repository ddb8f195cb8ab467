"""A TrainJob with our runtime: the real Kueue, Trainer and JobSet queue it, start its pods, and
start them again after a preemption.
"""

from collections.abc import Iterator

import pytest
import yaml

from holdfast.clients.api import Api, ApiError, Object
from holdfast.cost import prices
from holdfast.jobs.plan import any_gpu
from holdfast.jobs.render import kubeflow, manifests
from holdfast.manifests.render_context import RenderContext, yaml_text
from holdfast.vocabulary.kubernetes import LABEL_QUEUE
from holdfast.vocabulary.pools import GPU_RESOURCE, Pool
from tests import support
from tests.cluster.sim import operators, pods, queues
from tests.cluster.sim.host import Host
from tests.cluster.sim.manager import OwnManager
from tests.cluster.sim.processes import free_ports
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.platforms import load
from tests.tools.build import TOOLS
from workloads.library.tests.cluster.objects import list_uids
from workloads.library.tests.jobs.test_job_file import own

SYSTEM = "kubeflow-system"
ACCOUNT = "kubeflow-trainer-controller-manager"
RUNTIMES = f"{operators.TRAINER_API}/clustertrainingruntimes"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2"
NODES = 2
ZONE = "europe-west4-a"


def read(name: str) -> list[Object]:
    text = (operators.TRAINER / f"base/{name}.yaml").read_text()
    return list(yaml.load_all(text, yaml.CSafeLoader))


@pytest.fixture
def trainer(kueue: None, cluster: OwnManager, api: Api) -> Iterator[None]:
    """Trainer's controllers and webhooks, under their own account and roles."""
    support.require(TOOLS["trainer"].binary.exists(), "`make tools` has not built trainer")
    host = cluster.host
    assert host
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": SYSTEM},
    }
    api.apply(api.path_of(namespace), namespace)
    objects = [
        *read("rbac/service_account"),
        *read("rbac/role"),
        *read("rbac/role_binding"),
    ]
    for body in objects:
        if body["kind"] == "ServiceAccount":
            body["metadata"]["namespace"] = SYSTEM
        for subject in body.get("subjects", ()):
            subject["namespace"] = SYSTEM
        api.apply(api.path_of(body), body)
    path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{ACCOUNT}/token"
    token = api.create(path, {"spec": {"expirationSeconds": 86_400}})["status"]["token"]
    port = start(host, token)
    webhooks = read("webhook/manifests")
    for body in webhooks:
        redirected = operators.redirect_webhooks(
            body, f"https://{host.address}:{port}", host.authority.ca
        )
        api.apply(api.path_of(body), redirected)
    try:
        yield
    finally:
        for body in webhooks:
            api.delete(api.path_of(body))
        host.processes.end("trainer")


def start(host: Host, token: str) -> int:
    """Starts the controllers, and returns the port of their webhooks."""
    health, metrics = free_ports(2)
    (port,) = free_ports(1, host.address)
    configuration = {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
        "webhook": {
            "port": port,
            "host": host.address,
        },
        "leaderElection": {"leaderElect": False},
        "certManagement": {"enable": False},
    }
    host.authority.issue("trainer")
    # Trainer reads its certificates from this fixed path below the folder of temporary files.
    folder = host.folder / "trainer"
    certificates = folder / "k8s-webhook-server/serving-certs"
    certificates.mkdir(parents=True, exist_ok=True)
    for name, source in (
        ("tls.crt", host.authority.certificate),
        ("tls.key", host.authority.key),
    ):
        (certificates / name).touch(mode=0o600)
        (certificates / name).write_bytes(source("trainer").read_bytes())
    kubeconfig = host.write_kubeconfig("trainer", {"token": token})
    host.processes.start(
        "trainer",
        [TOOLS["trainer"].binary, f"--config={host.write_json('trainer.json', configuration)}"],
        {"KUBECONFIG": str(kubeconfig), "TMPDIR": str(folder)},
    )
    host.processes.wait_until("trainer is ready", lambda: operators.serves(health))
    return port


def render(world: World) -> tuple[Object, Object]:
    """Returns the runtime and the TrainJob of a gang, in the world's namespace, queue and nodes."""
    env = load("example")
    job = own(
        name=world.name,
        gpus="1xl4",
        nodes=NODES,
        capacity="spot",
    )
    placed = any_gpu.place(job, env, prices.load())
    text = yaml_text(manifests.bodies(job, RenderContext(env), placed))
    objects = list(yaml.load_all(text, yaml.CSafeLoader))
    (runtime,), (*_, train_job) = kubeflow.convert(objects)
    (group,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pod = group["template"]["spec"]["template"]["spec"]
    pod["nodeSelector"] |= world.selector
    for absent in ("serviceAccountName", "priorityClassName"):
        pod.pop(absent, None)
    # All that the queue of a test lends.
    gpus = {GPU_RESOURCE: "1"}
    pod["containers"][0]["resources"] = {
        "limits": gpus,
        "requests": {**gpus},
    }
    train_job["metadata"]["namespace"] = world.name
    train_job["metadata"]["labels"][LABEL_QUEUE] = queues.QUEUE
    return runtime, train_job


def test_train_job_is_queued_and_starts_again_after_a_preemption(
    trainer: None, world: World, spot: Pool
) -> None:
    api = world.api
    world.add_nodes(spot, NODES, zone=ZONE)
    queues.lend(world, spot, NODES)
    runtime, train_job = render(world)
    api.apply(f"{RUNTIMES}/{world.name}", runtime)
    path = world.path("trainjobs", operators.TRAINER_API)
    until("its runtime is known", lambda: create_if_known(api, path, train_job))
    first = world.wait_running(NODES)

    # Kueue has queued the TrainJob, and not the JobSet that Trainer made of it.
    (workload,) = api.items(world.path("workloads", queues.GROUP))
    assert workload["metadata"]["ownerReferences"][0]["kind"] == "TrainJob"
    ranks: set[str] = set()
    for pod in first:
        variables = pods.environment(pod)
        assert variables["HOLDFAST_JOB"] == variables["HOLDFAST_RUN"] == world.name
        assert variables["PET_MASTER_ADDR"] == f"{world.name}-node-0-0.{world.name}"
        assert variables["PET_NNODES"] == str(NODES)
        ranks.add(variables["PET_NODE_RANK"])
        container = pod["spec"]["containers"][0]
        assert container["command"] == [*kubeflow.LAUNCHER]
        assert container["args"] == ["python", "train.py"]
    assert ranks == {"0", "1"}

    world.preempt([first[0]["spec"]["nodeName"]])
    world.add_nodes(spot, 1, zone=ZONE)
    second = world.wait_running(NODES, old=list_uids(first))
    status = api.get(f"{world.path('jobsets', JOBSETS)}/{world.name}")["status"]
    assert (status["restarts"], status.get("restartsCountTowardsMax", 0)) == (1, 0)

    for pod in second:
        pods.end(api, pod)
    until("the TrainJob is complete", lambda: is_complete(api.get(f"{path}/{world.name}")))
    api.delete(f"{path}/{world.name}", propagationPolicy="Background")
    api.delete(f"{RUNTIMES}/{world.name}")
    # Trainer's controllers end with this test.
    until("the TrainJob is gone", lambda: not api.find(f"{path}/{world.name}"))


def create_if_known(api: Api, path: str, train_job: Object) -> Object | None:
    """Creates it; None if Trainer's webhook, which reads a cache, has not seen its runtime."""
    try:
        return api.create(path, train_job, fieldValidation="Strict")
    except ApiError as error:
        if error.status == 403 and "not found" in str(error):
            return None
        raise


def is_complete(train_job: Object) -> bool:
    conditions = train_job.get("status", {}).get("conditions", ())
    return any(
        condition["type"] == "Complete" and condition["status"] == "True"
        for condition in conditions
    )
