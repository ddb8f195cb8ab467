"""The steps of a proof, as data: what is run, how long it may take, and what is proven by it."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.contract import roles
from holdfast.contract.kubernetes import LABEL_NAME
from holdfast.contract.pools import Pool
from infra.environments import Environment
from infra.proof import dataset, machines

ROOT = Path(__file__).parents[2]
MINUTE_S = 60
PLATFORM = (sys.executable, "-m", "infra")
WORK = (sys.executable, "-m", "workloads")
RECEIPT = r"{.metadata.annotations.holdfast\.dev/receipt}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    name: str
    command: tuple[str, ...]
    limit_s: float
    holds: str
    """What is proven when it ends with 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A job of the rendered samples that runs on Spot."""

    name: str
    """Of its label; the job's own name has a digest."""
    file: str
    namespace: str
    kind: str
    runs: str
    """Path and value of its status when all its pods run."""
    ends: str
    """The condition of one that succeeded."""


GANG = Sample(
    name="train-gang",
    file="training.yaml",
    namespace=roles.NAMESPACE_TRAINING,
    kind="jobset",
    runs="{.status.replicatedJobsStatus[*].ready}=1",
    ends="Completed",
)
BATCH = Sample(
    name="batch-drain",
    file="batch.yaml",
    namespace=roles.NAMESPACE_BATCH,
    kind="job",
    runs=f"{{.status.ready}}={machines.PODS}",
    ends="Complete",
)
SAMPLES = (GANG, BATCH)
LOADER = replace(BATCH, name="batch-load")
"""Puts the batch's items into its queue, on a machine without a GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One proof: where its samples run, and where its files are."""

    pool: Pool
    folder: Path
    """Of this run: its own kubeconfig, which never is the user's, and its own samples, cut down to the pool."""
    usd_per_hour: float
    """Of all machines of the samples, as it was priced."""

    @property
    def kubeconfig(self) -> str:
        return f"--kubeconfig={self.folder / 'kubeconfig'}"

    @property
    def samples(self) -> Path:
        return self.folder / "manifests"


def proof(environment: Environment, run: Run) -> list[Step]:
    """Up to the receipts."""
    return [
        _platform("doctor", environment, 10, "nothing that a deployment needs is missing"),
        _platform("deploy", environment, 90, "the stacks apply", "--yes"),
        *_images(environment),
        *_inputs(environment, run),
        _step("credentials", 2, "the cluster is reached", *_credentials(environment)),
        *_cluster(environment, run),
        # The batch predicts with what the gang has trained, on the same machines.
        *_judged(environment, run, GANG),
        _submit(environment, run, LOADER),
        _step("loaded", 31, "the queue has every item", *_wait(run, LOADER, "condition=Complete", 30)),
        *_judged(environment, run, BATCH),
    ]


def _images(environment: Environment) -> Iterator[Step]:
    """Into the registry that the deployment made; their digests are written into this checkout."""
    build, copy = (*WORK, "images", "build", environment.name), (*WORK, "images", "copy", environment.name)
    yield _step("images-base", 5, "the base image has a digest", *WORK, "images", "base")
    yield _step("images", 60, "each role has an image of a known digest", *build)
    yield _step("images-of-others", 20, "operators come from the own registry", *copy)


def _inputs(environment: Environment, run: Run) -> Iterator[Step]:
    cut = (f"--small={run.pool.name}", f"--workers={machines.PODS}", f"--items=/data/{dataset.FILE}")
    render = (*WORK, "render", environment.name, f"--out={run.samples}", *cut)
    yield _step("render", 5, "samples name those digests, and the smallest Spot pool", *render)
    bucket, project = f"gs://{environment.bucket('data')}/", f"--project={environment.project}"
    copy = ("gcloud", "storage", "cp", str(run.folder / dataset.FILE), bucket, project)
    yield _step("dataset", 10, "the bucket of data takes a file", *copy)


def clean_up(environment: Environment) -> list[Step]:
    """Each is tried, whatever became of the one before."""
    confirmed = ("--yes", f"--confirm={environment.name}")
    return [
        _platform("destroy", environment, 90, "all of it goes again", *confirmed),
        _platform("leftovers", environment, 10, "nothing that bills is left"),
    ]


def _cluster(environment: Environment, run: Run) -> Iterator[Step]:
    operators = (*WORK, "operators", "apply", environment.name, run.kubeconfig)
    yield _step("operators", 20, "JobSet and Kueue answer", *operators)
    platform = (*WORK, "apply", environment.name, run.kubeconfig)
    yield _step("platform", 5, "the platform half is admitted", *platform)


def _judged(environment: Environment, run: Run, sample: Sample) -> Iterator[Step]:
    """A sample from its start to its receipt."""
    # A loader has no price in the table of machines with GPUs, and a cap refuses what has none.
    yield _submit(environment, run, sample, f"--max-usd-per-hour={run.usd_per_hour:.4f}")
    # No status in time is how a stock-out shows: the pods stay Pending.
    comes = _wait(run, sample, f"jsonpath={sample.runs}", 45)
    yield _step(f"capacity-{sample.name}", 46, "Spot machines come, with drivers that work", *comes)
    # The drill asks the cluster for the pools of the pods, and takes one machine of each.
    drill = (*WORK, "drill", "run", "gke-maintenance", "--target=gke", "--each-pool", "--yes")
    place = (run.kubeconfig, f"--context={context(environment)}", *_of(sample))
    holds = "a machine of each of its pools is taken, and it comes back"
    yield _step(f"maintenance-{sample.name}", 25, holds, *drill, *place)
    ended = _wait(run, sample, f"condition={sample.ends}", 45)
    yield _step(f"end-{sample.name}", 46, "the work ends although its machines were taken", *ended)
    receipt = _wait(run, sample, f"jsonpath={RECEIPT}", 10)
    yield _step(f"receipt-{sample.name}", 11, "it has a receipt of what it cost", *receipt)


def _submit(environment: Environment, run: Run, sample: Sample, *caps: str) -> Step:
    file = str(run.samples / environment.name / "samples" / sample.file)
    options = (f"--job={sample.name}", f"--env={environment.name}", run.kubeconfig, *caps)
    return _step(f"submit-{sample.name}", 5, "admitted within its cap", *WORK, "submit", file, *options, "--yes")


def _wait(run: Run, sample: Sample, state: str, minutes: int) -> tuple[str, ...]:
    """On the job: a wait for pods fails at once while there are none."""
    return ("kubectl", run.kubeconfig, "wait", sample.kind, *_of(sample), f"--for={state}", f"--timeout={minutes}m")


def context(environment: Environment) -> str:
    """As gcloud names it."""
    return f"gke_{environment.project}_{environment.region}_{environment.cluster_name}"


def _of(sample: Sample) -> tuple[str, str]:
    return f"--namespace={sample.namespace}", f"--selector={LABEL_NAME}={sample.name}"


def _credentials(environment: Environment) -> tuple[str, ...]:
    reach = "--dns-endpoint" if environment.cluster.dns_endpoint_public else "--internal-ip"
    place = (f"--region={environment.region}", f"--project={environment.project}", reach)
    return ("gcloud", "container", "clusters", "get-credentials", environment.cluster_name, *place)


def _platform(verb: str, environment: Environment, minutes: float, holds: str, *options: str) -> Step:
    return _step(verb, minutes, holds, *PLATFORM, verb, environment.name, *options)


def _step(name: str, minutes: float, holds: str, *command: str) -> Step:
    return Step(name=name, command=command, limit_s=minutes * MINUTE_S, holds=holds)
