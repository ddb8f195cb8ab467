"""Which operators a cluster gets, at which version, and where their manifests and images come from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.contract.versions import JOBSET_VERSION, KUEUE_VERSION

Body = dict[str, Any]
UPSTREAM = Path(__file__).with_name("upstream")
# On every object of an operator: what an older version had and this one lacks is found by it and
# removed.
LABEL_OPERATOR = "holdfast.dev/operator"
LABEL_VERSION = "app.kubernetes.io/version"
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
CRD = "CustomResourceDefinition"


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    name: str
    """Of its image in the environment's registry, too."""
    version: str
    module: str
    """The Go module whose config/default is rendered; its checksum is that of the Go checksum
    database.
    """
    released_as: str
    """The image that its project releases, without a tag. The module's own manifest names a staging
    registry.
    """

    @property
    def namespace(self) -> str:
        return f"{self.name}-system"

    @property
    def deployment(self) -> str:
        return f"{self.name}-controller-manager"

    @property
    def file(self) -> Path:
        return UPSTREAM / f"{self.name}.yaml"

    @property
    def release(self) -> str:
        return f"{self.released_as}:v{self.version}"


JOBSET = Operator(
    name="jobset",
    version=JOBSET_VERSION,
    module="sigs.k8s.io/jobset",
    released_as="registry.k8s.io/jobset/jobset",
)
KUEUE = Operator(
    name="kueue",
    version=KUEUE_VERSION,
    module="sigs.k8s.io/kueue",
    released_as="registry.k8s.io/kueue/kueue",
)
# JobSet first: Kueue watches its kind from the start, and begins to manage it only after a restart
# otherwise.
OPERATORS = (JOBSET, KUEUE)


def upstream(operator: Operator) -> list[Body]:
    """Its vendored manifest."""
    import yaml

    # The manifests hold 2.5 MB of schemas: seconds with the loader in Python.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [
        body
        for body in yaml.load_all(operator.file.read_text(encoding="utf-8"), Loader=loader)
        if body
    ]
