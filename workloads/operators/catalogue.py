"""Lists the operators of a cluster with their versions and the sources of manifests and images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.contract.versions import JOBSET_VERSION, KUEUE_VERSION

Body = dict[str, Any]
UPSTREAM = Path(__file__).with_name("upstream")
# Label of every object of an operator, by which objects of an older version are found and removed.
LABEL_OPERATOR = "holdfast.dev/operator"
LABEL_VERSION = "app.kubernetes.io/version"
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
CRD = "CustomResourceDefinition"


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    name: str
    """Name of the operator and of its image in the environment's registry."""
    version: str
    module: str
    """Go module whose config/default is rendered, with the checksum of the Go checksum database."""
    released_as: str
    """Image that its project releases, without a tag. The module's manifest names another one, of a
    staging registry.
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
# JobSet first: Kueue manages its kind only if it exists when Kueue starts.
OPERATORS = (JOBSET, KUEUE)


def upstream(operator: Operator) -> list[Body]:
    """Returns the objects of an operator's vendored manifest."""
    import yaml

    # The manifests have 2.5 MB of schemas: seconds with the loader in Python.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = operator.file.read_text(encoding="utf-8")
    return [body for body in yaml.load_all(text, Loader=loader) if body]
