"""Gives every builder the environment, its pools and image digests.

A builder writes no label and no taint itself. Digests are in workloads/images/digests.json, because
each push changes them and an environment is a literal that people edit. A role without a digest
gets zeros, which no registry has: a fresh fork renders and plans, and its pods stay in
ImagePullBackOff, so nothing else can run in their place.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from kubernetes import client
from ruamel.yaml import YAML

from holdfast.manifests import skips
from holdfast.platform import Platform
from holdfast.support.errors import InputError
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.environment import ENV_JOB
from holdfast.vocabulary.job_identity import LABEL_HOLDFAST_JOB
from holdfast.vocabulary.kubernetes import LABEL_NAME, LABEL_PART_OF, PART_OF
from holdfast.vocabulary.pools import LABEL_NODEPOOL, Pool, Role
from holdfast.vocabulary.roles import ROLES

Body = dict[str, Any]
VERSION_LENGTH = 8
_API = client.ApiClient()


def plain(model: Any) -> Body:
    """Returns a model as the API server takes it, with the checks that it fails on purpose."""
    body: Any = _API.sanitize_for_serialization(model)
    metadata = body.get("metadata", {})
    kind = body.get("kind", "")
    annotations = skips.annotations(kind, metadata.get("namespace"), metadata.get("name", ""))
    if annotations:
        metadata["annotations"] = metadata.get("annotations", {}) | annotations
    return body


def manifest(api: str, kind: str, metadata: client.V1ObjectMeta, **fields: Any) -> Body:
    """Builds an object; `fields` are those other than its metadata, as dicts or models."""
    body = {
        "apiVersion": api,
        "kind": kind,
        "metadata": metadata,
        **fields,
    }
    return plain(dict(sorted(body.items())))


def meta(name: str, namespace: str | None = None, **fields: Any) -> client.V1ObjectMeta:
    labels = {LABEL_NAME: name, LABEL_PART_OF: PART_OF} | fields.pop("labels", {})
    return client.V1ObjectMeta(
        name=name,
        namespace=namespace,
        labels=labels,
        **fields,
    )


def add_version(body: Body) -> Body:
    """Appends a digest of its spec to the name of a Job or JobSet, and writes it into the pods.

    A template cannot be changed once it exists: with another image it must be another object next
    to the old one (infra/decisions/0068).
    """
    text = json.dumps(body["spec"], sort_keys=True, separators=(",", ":"))
    digest = sha256(text.encode()).hexdigest()[:VERSION_LENGTH]
    name = f"{body['metadata']['name']}-{digest}"
    body["metadata"]["name"] = name
    for template in templates(body["spec"]):
        # Without the label the template's processes write no lines of a job.
        if LABEL_HOLDFAST_JOB in template["metadata"]["labels"]:
            template["metadata"]["labels"][LABEL_HOLDFAST_JOB] = name
        containers = list(template["spec"]["containers"])
        containers += template["spec"].get("initContainers") or ()
        for container in containers:
            for variable in container.get("env") or ():
                if variable["name"] == ENV_JOB:
                    variable["value"] = name
    return body


def yaml_text(bodies: Sequence[Body]) -> str:
    yaml = YAML()
    stream = io.StringIO()
    yaml.explicit_start = True
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump_all(bodies, stream)
    return stream.getvalue()


def templates(spec: Body) -> list[Body]:
    """Returns the pod templates of a Job or JobSet."""
    groups = spec.get("replicatedJobs")
    if groups:
        return [group["template"]["spec"]["template"] for group in groups]
    return [spec["template"]]


@dataclass(frozen=True, kw_only=True)
class Small:
    """Limits of small samples, for a cluster that lives for hours: all Spot work shares a pool."""

    pool: Pool
    workers: int
    """Workers of the batch."""
    items: str
    """Source of the batch, as a path in the pod."""


@dataclass(frozen=True)
class RenderContext:
    platform: Platform
    small: Small | None = None
    """Limits of the samples; None: every sample is as large as its own pools allow."""

    def image(self, role: str) -> str:
        # Zeros: no image was pushed for this environment yet. Such a pod stays in ImagePullBackOff,
        # it runs nothing else.
        digest = self.platform.images.get(role, "0" * 64)
        return f"{self.platform.registry}/{role}@sha256:{digest}"

    def require_digests(self, roles: Sequence[str]) -> None:
        """Raises InputError if one of `roles` has no image yet.

        Called before objects are sent to a cluster; rendering alone needs no images.
        """
        missing_roles = [role for role in roles if role not in self.platform.images]
        if not missing_roles:
            return
        # Images of other projects are copied, not built.
        targets = {"images" if role in ROLES else "operators-pin" for role in missing_roles}
        raise InputError(
            f"image digests of {self.platform.name}",
            got=f"none for {', '.join(missing_roles)} in its document",
            allowed=f"the sha256 of each in {self.platform.registry}",
            fix=f"make {' '.join(sorted(targets))} ENV={self.platform.name}",
        )

    def pool(self, role: Role, capacity: Capacity) -> Pool | None:
        for pool in self.platform.pools:
            if (pool.role, pool.capacity) == (role, capacity):
                return pool
        return None

    @cached_property
    def training(self) -> Pool:
        return self._spot(Role.TRAINING, Role.BATCH)

    @cached_property
    def batch(self) -> Pool:
        return self._spot(Role.BATCH, Role.TRAINING)

    @property
    def pins(self) -> dict[str, str]:
        """Selector of one pool, in addition to the pool's own, which is that of its class."""
        return {LABEL_NODEPOOL: self.small.pool.name} if self.small else {}

    def _spot(self, *roles: Role) -> Pool:
        if self.small:
            return self.small.pool
        for role in roles:
            pool = self.pool(role, Capacity.SPOT)
            if pool:
                return pool
        raise InputError(
            f"environment {self.platform.name}",
            got="no Spot group of role training or batch",
            allowed="at least one",
            fix="add a NodeGroup with capacity=Capacity.SPOT",
        )

    @property
    def system(self) -> Pool:
        return self.platform.system_pool()

    def trains(self, run: str) -> bool:
        """Returns whether the environment has a prefix for the run's checkpoints."""
        return not self.platform.runs or self.platform.is_listed(run)

    @property
    def checkpoints(self) -> str:
        bucket = self.platform.buckets["checkpoints"]
        return f"gs://{bucket}/{self.platform.default_run}".rstrip("/")

    def flex_gpus(self, accelerator: str) -> int:
        """Returns the GPUs on flex-start nodes that come one by one.

        Auto-provisioning has one cap, of which queued nodes get half.
        """
        cap = self.platform.quota(accelerator)
        return cap - cap // 2 + self._sum_quotas(accelerator, Capacity.FLEX_START)

    def queued_gpus(self, accelerator: str) -> int:
        """Returns the GPUs on flex-start nodes that come all at once."""
        cap = self.platform.quota(accelerator)
        return cap // 2 + self._sum_quotas(accelerator, Capacity.QUEUED)

    def _sum_quotas(self, accelerator: str, capacity: Capacity) -> int:
        pool_classes: set[str] = set()
        for pool in self.platform.pools:
            if (pool.accelerator, pool.capacity) == (accelerator, capacity):
                pool_classes.add(pool.pool_class)
        return sum(map(self.platform.quota, pool_classes))
