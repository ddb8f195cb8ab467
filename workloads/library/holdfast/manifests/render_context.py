"""What every builder is handed: the environment, its pools, image digests. A builder spells no
label and no taint.

Digests are in workloads/images/digests.json, because each push changes them and an environment is a
literal that people edit. A role without a digest gets zeros, which no registry has: a fresh fork
renders and plans, and its pods stay in ImagePullBackOff, so nothing else can run in their place.
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
    """A model as the API server takes it, with the checks that it fails on purpose."""
    body: Any = _API.sanitize_for_serialization(model)
    about = body.get("metadata", {})
    skipped = skips.annotations(body.get("kind", ""), about.get("namespace"), about.get("name", ""))
    if skipped:
        about["annotations"] = about.get("annotations", {}) | skipped
    return body


def manifest(api: str, kind: str, metadata: client.V1ObjectMeta, **fields: Any) -> Body:
    """An object of a kind; `fields` are those other than its metadata, as dicts or models."""
    return plain(
        dict(
            sorted(
                {
                    "apiVersion": api,
                    "kind": kind,
                    "metadata": metadata,
                    **fields,
                }.items()
            )
        )
    )


def meta(name: str, namespace: str | None = None, **more: Any) -> client.V1ObjectMeta:
    labels = {LABEL_NAME: name, LABEL_PART_OF: PART_OF} | more.pop("labels", {})
    return client.V1ObjectMeta(
        name=name,
        namespace=namespace,
        labels=labels,
        **more,
    )


def versioned(body: Body) -> Body:
    """A Job or JobSet whose name ends in a digest of its spec, and whose pods know that name.

    Its template cannot be changed once it exists: with another image it must be another object next
    to the old one (infra/decisions/0068).
    """
    text = json.dumps(body["spec"], sort_keys=True, separators=(",", ":"))
    name = f"{body['metadata']['name']}-{sha256(text.encode()).hexdigest()[:VERSION_LENGTH]}"
    body["metadata"]["name"] = name
    for template in templates(body["spec"]):
        # else its processes write no lines of a job
        if LABEL_HOLDFAST_JOB in template["metadata"]["labels"]:
            template["metadata"]["labels"][LABEL_HOLDFAST_JOB] = name
        for container in (
            *template["spec"]["containers"],
            *(template["spec"].get("initContainers") or ()),
        ):
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
    """The pod templates of a Job or JobSet."""
    groups = spec.get("replicatedJobs")
    if groups:
        return [group["template"]["spec"]["template"] for group in groups]
    return [spec["template"]]


@dataclass(frozen=True, kw_only=True)
class Small:
    """The samples cut down, for a cluster that lives for hours: all work on Spot shares one pool."""

    pool: Pool
    workers: int
    """Of the batch."""
    items: str
    """Source of the batch, in the pod."""


@dataclass(frozen=True)
class RenderContext:
    platform: Platform
    small: Small | None = None
    """None: every sample as large as its own pools allow."""

    def image(self, role: str) -> str:
        # Zeros: no image was pushed for this environment yet. Such a pod stays in ImagePullBackOff,
        # it runs nothing else.
        return f"{self.platform.registry}/{role}@sha256:{self.platform.images.get(role, '0' * 64)}"

    def require_digests(self, roles: Sequence[str]) -> None:
        """InputError where one of `roles` has no image yet; for what is sent to a cluster, not for
        what is rendered.
        """
        absent = [role for role in roles if role not in self.platform.images]
        if absent:
            # Images of others are copied, not built.
            targets = sorted({"images" if role in ROLES else "operators-pin" for role in absent})
            raise InputError(
                f"image digests of {self.platform.name}",
                got=f"none for {', '.join(absent)} in its document",
                allowed=f"the sha256 of each in {self.platform.registry}",
                fix=f"make {' '.join(targets)} ENV={self.platform.name}",
            )

    def pool(self, role: Role, capacity: Capacity) -> Pool | None:
        return next(
            (p for p in self.platform.pools if (p.role, p.capacity) == (role, capacity)), None
        )

    @cached_property
    def training(self) -> Pool:
        return self._spot(Role.TRAINING, Role.BATCH)

    @cached_property
    def batch(self) -> Pool:
        return self._spot(Role.BATCH, Role.TRAINING)

    @property
    def pins(self) -> dict[str, str]:
        """Selector in addition to the pool's own, which is that of its class."""
        return {LABEL_NODEPOOL: self.small.pool.name} if self.small else {}

    def _spot(self, *roles: Role) -> Pool:
        if self.small:
            return self.small.pool
        found = next((p for role in roles if (p := self.pool(role, Capacity.SPOT))), None)
        if found is None:
            raise InputError(
                f"environment {self.platform.name}",
                got="no Spot group of role training or batch",
                allowed="at least one",
                fix="add a NodeGroup with capacity=Capacity.SPOT",
            )
        return found

    @property
    def system(self) -> Pool:
        return self.platform.system_pool()

    def trains(self, run: str) -> bool:
        """Whether the environment has a place for its checkpoints."""
        return not self.platform.runs or self.platform.is_listed(run)

    @property
    def checkpoints(self) -> str:
        return f"gs://{self.platform.buckets['checkpoints']}/{self.platform.default_run}".rstrip(
            "/"
        )

    def flex_gpus(self, accelerator: str) -> int:
        """GPUs on flex-start nodes that come one by one. Auto-provisioning's rest is shared out,
        since it is one cap.
        """
        rest = self.platform.quota(accelerator)
        return rest - rest // 2 + self._grouped(accelerator, Capacity.FLEX_START)

    def queued_gpus(self, accelerator: str) -> int:
        """GPUs on flex-start nodes that come all at once."""
        return self.platform.quota(accelerator) // 2 + self._grouped(accelerator, Capacity.QUEUED)

    def _grouped(self, accelerator: str, capacity: Capacity) -> int:
        fitting = set()
        for p in self.platform.pools:
            if (p.accelerator, p.capacity) == (accelerator, capacity):
                fitting.add(p.pool_class)
        return sum(map(self.platform.quota, fitting))
