"""HF312 and HF313: what a ClusterQueue lends, and of which nodes."""

from collections.abc import Iterator

from holdfast.contract.pools import LABEL_POOL_CLASS, LABEL_ROLE
from holdfast.lint.finding import Hit, Severity
from holdfast.lint.objects import Object, as_list, as_map, as_text, dig, near
from holdfast.lint.registry import Context, rule

DOC_FLAVOR = "https://kueue.sigs.k8s.io/docs/concepts/resource_flavor/"
DOC_QUEUE = "https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/"


def _flavor(pool_class: str) -> str:
    return (
        "apiVersion: kueue.x-k8s.io/v1beta2\nkind: ResourceFlavor\nmetadata: {name: spot}\n"
        f"spec: {{nodeLabels: {{holdfast.dev/pool-class: {pool_class}}}}}\n"
    )


@rule(
    "HF312", "flavor-of-no-pool", Severity.ERROR, on=Object,
    what="A ResourceFlavor stands for nodes that no pool makes.",
    why="Kueue admits jobs on it and adds its labels to their pods, which then stay Pending and hold the quota.",
    source=DOC_FLAVOR, fix="use a pool class of the environment", bad=_flavor("spot-l44"), good=_flavor("spot-l4"),
)  # fmt: skip
def flavor_of_no_pool(obj: Object, context: Context) -> Iterator[Hit]:
    """Only labels that are the platform's own: nodes of others have labels that nobody here knows."""
    for key in (LABEL_POOL_CLASS, LABEL_ROLE) if obj.kind == "ResourceFlavor" else ():
        value = as_text(as_map(obj.spec.get("nodeLabels")).get(key))
        known = sorted(context.platform.label_values.get(key, ()))
        if value and value not in known:
            meant = near(value, known)
            hint = f"; did you mean {meant}?" if meant else ""
            yield Hit(("spec", "nodeLabels", key), f"no pool has {key}={value}{hint}")


def _queue(covered: str) -> str:
    return (
        "apiVersion: kueue.x-k8s.io/v1beta2\nkind: ClusterQueue\nmetadata: {name: gpus}\n"
        f"spec: {{resourceGroups: [{{coveredResources: [{covered}], flavors: [{{name: spot, resources:"
        " [{name: cpu, nominalQuota: 8}, {name: nvidia.com/gpu, nominalQuota: 1}]}]}]}\n"
    )


@rule(
    "HF313", "quota-of-uncovered-resource", Severity.ERROR, on=Object,
    what="A flavor of a ClusterQueue lends other resources than its group covers, or in another order.",
    why="Kueue refuses the queue; where an older one stands, that one goes on.",
    source=DOC_QUEUE, fix="list the same resources in coveredResources and in each flavor, in one order",
    bad=_queue("cpu"), good=_queue("cpu, nvidia.com/gpu"),
)  # fmt: skip
def quota_of_uncovered_resource(obj: Object, context: Context) -> Iterator[Hit]:
    for g, group in enumerate(as_list(obj.spec.get("resourceGroups")) if obj.kind == "ClusterQueue" else []):
        covered = as_list(dig(group, "coveredResources"))
        for f, flavor in enumerate(as_list(dig(group, "flavors"))):
            lent = [dig(each, "name") for each in as_list(dig(flavor, "resources"))]
            if covered and lent and lent != covered:
                at = ("spec", "resourceGroups", g, "flavors", f, "resources")
                yield Hit(at, f"lends {_few(lent)}, its group covers {_few(covered)}")


def _few(names: list[object]) -> str:
    return ", ".join(map(str, names[:5]))
