"""The steps of a proof, as data: what is run, how long it may take, and what is proven by it."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.contract import names
from infra.contract.capacity import Capacity
from infra.contract.kubernetes import LABEL_NAME
from infra.environments import Environment

ROOT = Path(__file__).parents[2]
RENDERED = ROOT / "workloads" / "rendered"
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
    ends: str
    """The condition of one that succeeded."""


GANG = Sample(
    name="train-gang", file="training.yaml", namespace=names.NAMESPACE_TRAINING, kind="jobset", ends="Completed"
)
BATCH = Sample(name="batch-drain", file="batch.yaml", namespace=names.NAMESPACE_BATCH, kind="job", ends="Complete")
SAMPLES = (GANG, BATCH)
LOADER = "batch-load"
"""Puts the batch's items into its queue, on a machine without a GPU."""


def proof(environment: Environment, folder: Path, max_usd: float) -> list[Step]:
    """Up to the receipts. `folder`: of this run, for its own kubeconfig, which never is the user's."""
    return [
        _platform("doctor", environment, 10, "nothing that a deployment needs is missing"),
        _platform("deploy", environment, 90, "the stacks apply", "--yes"),
        *_images(environment),
        _step("credentials", 2, "the cluster is reached", *_credentials(environment)),
        *_cluster(environment, str(folder / "kubeconfig"), max_usd),
    ]


def _images(environment: Environment) -> Iterator[Step]:
    """Into the registry that the deployment made; their digests are written into this checkout."""
    build, copy = (*WORK, "images", "build", environment.name), (*WORK, "images", "copy", environment.name)
    yield _step("images", 60, "each role has an image of a known digest", *build)
    yield _step("images-of-others", 20, "operators come from the own registry", *copy)
    yield _step("render", 5, "manifests name those digests", *WORK, "render", environment.name)


def clean_up(environment: Environment) -> list[Step]:
    """Each is tried, whatever became of the one before."""
    confirmed = ("--yes", f"--confirm={environment.name}")
    return [
        _platform("destroy", environment, 90, "all of it goes again", *confirmed),
        _platform("leftovers", environment, 10, "nothing that bills is left"),
    ]


def _cluster(environment: Environment, kubeconfig: str, max_usd: float) -> Iterator[Step]:
    rendered, kubectl = RENDERED / environment.name, ("kubectl", f"--kubeconfig={kubeconfig}")
    operators = (*WORK, "operators", "apply", environment.name, f"--kubeconfig={kubeconfig}")
    yield _step("operators", 20, "JobSet and Kueue answer", *operators)
    platform = (*WORK, "apply", environment.name, f"--kubeconfig={kubeconfig}")
    yield _step("platform", 5, "the platform half is admitted", *platform)
    for sample, job in ((BATCH, LOADER), *((s, s.name) for s in SAMPLES)):
        file = str(rendered / "samples" / sample.file)
        options = (f"--job={job}", f"--env={environment.name}", f"--kubeconfig={kubeconfig}")
        cap = f"--max-usd-per-hour={max_usd}"
        yield _step(f"submit-{job}", 5, "admitted under its cap", *WORK, "submit", file, *options, cap, "--yes")
    for sample in SAMPLES:
        # No condition in time is how a stock-out shows: the pods stay Pending.
        wait = (*kubectl, "wait", "pod", *_of(sample), "--for=condition=Ready", "--timeout=45m")
        yield _step(f"capacity-{sample.name}", 46, "Spot machines come, with drivers that work", *wait)
    pools = sum(pool.capacity is Capacity.SPOT for pool in environment.pools())
    for sample in SAMPLES:
        # The autoscaler chose the pools: the drill asks the cluster for them, and takes one machine of each in turn.
        drill = (*WORK, "drill", "run", "gke-maintenance", "--target=gke", "--each-pool", "--yes")
        place = (f"--kubeconfig={kubeconfig}", f"--context={context(environment)}", *_of(sample))
        holds = "a machine of each of its pools is taken, and it comes back"
        yield _step(f"maintenance-{sample.name}", 20 * pools + 5, holds, *drill, *place)
    for sample in SAMPLES:
        ended = (*kubectl, "wait", sample.kind, *_of(sample), f"--for=condition={sample.ends}", "--timeout=45m")
        yield _step(f"end-{sample.name}", 46, "the work ends although its machines were taken", *ended)
        receipt = (*kubectl, "wait", sample.kind, *_of(sample), f"--for=jsonpath={RECEIPT}", "--timeout=10m")
        yield _step(f"receipt-{sample.name}", 11, "it has a receipt of what it cost", *receipt)


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
