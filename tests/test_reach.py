"""Reachable or gone: the capabilities of what-you-get.md, the environment that makes each, and the
file of the examples or samples that asks for it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from holdfast.jobs.file import file_text
from holdfast.jobs.file.job_file import JobSpec
from holdfast.platform import Platform
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.pools import JOB_ROLES, Role
from tests import platforms
from tests.workloads.manifests.rendered import load_objects

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "workloads/library/holdfast"
PAGE = (LIBRARY.parent / "docs/explanation/what-you-get.md").read_text()
SHIPPED = ("dev", "example", "prod")


@dataclass(frozen=True)
class Capability:
    words: str
    """The words of the page."""
    is_made: Callable[[Platform], bool]
    """Tells whether an environment has what the capability needs."""
    environments: tuple[str, ...]
    """The environments that have it."""
    file: str
    """The example that asks for it, or the sample as `samples:NAME`."""
    asks: Callable[[JobSpec], bool] = bool


def has_group(
    capacity: Capacity, gpus: int, *roles: Role, minimum: int | None = None
) -> Callable[[Platform], bool]:
    """Returns a check for a pool of this capacity with at least that many GPUs a node."""

    def check(platform: Platform) -> bool:
        for pool in platform.pools:
            fits = pool.capacity is capacity and pool.role in (roles or JOB_ROLES)
            has_gpus = pool.gpus_per_node >= gpus if gpus else not pool.gpus_per_node
            if fits and has_gpus and minimum in (None, pool.min_nodes):
                return True
        return False

    return check


def has_auto_provisioning(platform: Platform) -> bool:
    return any(platform.quota(accelerator) for accelerator in platform.auto_provisioning)


TRAINING = "training/examples/"
CAPABILITIES = (
    Capability(
        "controllers, queues, add-ons",
        has_group(Capacity.ON_DEMAND, 0, Role.SYSTEM),
        SHIPPED,
        "samples:holdfast",
    ),
    Capability(
        "the base of online serving",
        has_group(Capacity.ON_DEMAND, 1, Role.SERVING),
        SHIPPED,
        "samples:server",
    ),
    Capability(
        "deadlines with under 10% slack",
        has_group(Capacity.ON_DEMAND, 1, minimum=0),
        SHIPPED,
        TRAINING + "nanogpt.yaml",
        lambda job: bool(job.deadline_hours),
    ),
    Capability(
        "training with checkpoints",
        has_group(Capacity.SPOT, 1),
        SHIPPED,
        TRAINING + "hyperparameter_search.yaml",
        lambda job: job.resumes and job.capacity == Capacity.SPOT,
    ),
    Capability(
        "elastic gangs of 4 nodes or more",
        has_group(Capacity.SPOT, 1),
        SHIPPED,
        TRAINING + "elastic_loop.yaml",
        lambda job: job.elastic and job.min_nodes >= 4,
    ),
    Capability(
        "the overflow of online serving",
        lambda platform: bool(platform.serving and platform.serving.overflow_most),
        SHIPPED,
        "samples:server",
    ),
    Capability(
        "on-demand pools for system, serving and jobs",
        has_group(Capacity.ON_DEMAND, 1, minimum=0),
        SHIPPED,
        TRAINING + "nanogpt.yaml",
        lambda job: bool(job.deadline_hours),
    ),
    Capability(
        "tainted Spot pools (L4, A100, CPU)",
        has_group(Capacity.SPOT, 1),
        SHIPPED,
        TRAINING + "elastic_loop.yaml",
        lambda job: job.capacity == Capacity.SPOT,
    ),
    Capability(
        "CPU jobs",
        has_group(Capacity.SPOT, 0),
        SHIPPED,
        TRAINING + "plain_loop.yaml",
        lambda job: not job.gpu_count and job.resumes,
    ),
    Capability(
        "auto-provisioning with caps for flex-start",
        has_auto_provisioning,
        SHIPPED,
        "samples:train-flex-tesla-a100",
    ),
    Capability(
        "train elastically (`nodes: 4..8`)",
        has_group(Capacity.SPOT, 1),
        SHIPPED,
        TRAINING + "elastic_loop.yaml",
        lambda job: job.elastic,
    ),
    Capability(
        "`sharded: true`: shards also in memory",
        has_group(Capacity.SPOT, 8, Role.TRAINING),
        SHIPPED,
        TRAINING + "sharded_fsdp2.yaml",
        lambda job: job.sharded,
    ),
    Capability(
        "an urgent job takes only as many as it lacks",
        has_group(Capacity.SPOT, 1, Role.TRAINING),
        SHIPPED,
        TRAINING + "sharded_fsdp2.yaml",
        lambda job: job.elastic and job.capacity == Capacity.SPOT,
    ),
    Capability("sharded gangs", has_group(Capacity.SPOT, 8), SHIPPED, "samples:train-sharded"),
    Capability("rigid gangs", has_auto_provisioning, SHIPPED, "samples:train-queued-tesla-a100"),
    Capability(
        "every item stored exactly once",
        lambda platform: platform.database is not None,
        ("example", "prod"),
        "inference/examples/vllm_predictor.yaml",
        lambda job: bool(job.predictor),
    ),
    Capability(
        "batch from a queue",
        lambda platform: bool(platform.lanes),
        ("example",),
        "inference/examples/vllm_predictor.yaml",
        lambda job: bool(job.lane),
    ),
    Capability(
        "an on-demand base with Spot overflow",
        lambda platform: platform.serving is not None,
        SHIPPED,
        "samples:serve",
    ),
)


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda row: row.words)
def test_what_the_page_names_is_made_and_asked_for(capability: Capability) -> None:
    assert capability.words in PAGE, "the page no longer says it: drop the row"
    environments = {name for name in SHIPPED if capability.is_made(platforms.load(name))}
    assert environments == set(capability.environments)
    kind, _, name = capability.file.partition(":")
    if name:
        for environment in capability.environments:
            names = {strip_digest(body) for body in load_objects(environment)}
            assert any(sample.startswith(name) for sample in names), (environment, name)
        return
    path = LIBRARY / kind
    document: dict[str, Any] = YAML(typ="safe").load(path.read_text())
    assert capability.asks(file_text.parse(document, str(path)))


def test_page_places_only_work_with_a_row() -> None:
    """Whatever the page places on a capacity is made and asked for."""
    table = PAGE.partition("## Which capacity for which work")[2].partition("`holdfast place`")[0]
    works: list[str] = []
    for _, _, cell in re.findall(r"^\| ((on-demand|Spot|flex-start).*?) \| (.*) \|$", table, re.M):
        works += re.split(r"[,;] ", cell)
    words = " | ".join(capability.words for capability in CAPABILITIES)
    assert len(works) > 10
    assert [work for work in works if work not in words] == []


def strip_digest(body: dict[str, Any]) -> str:
    return str(body["metadata"]["name"]).rpartition("-")[0]
