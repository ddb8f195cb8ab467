"""Drills on a cluster that is not the drill's own: what must be named, and who is asked before the first fault.

Nothing is taken from the current context: a drill that hits the wrong cluster is worse than none.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.contract.errors import InputError, Unjudged
from workloads.drill.conduct import Refused
from workloads.drill.plan import Drill, Place
from workloads.drill.target import Target


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    kubeconfig: Path | None = None
    context: str = ""
    namespace: str = ""
    selector: str = ""
    events: Path | None = None
    project: str = ""
    yes: bool = False


def checked(place: Place, where: Where) -> Where:
    """Everything named, the context known, somebody there to ask."""
    needed = {"--context": where.context, "--namespace": where.namespace, "--selector": where.selector}
    if place is Place.GKE:
        needed["--project"] = where.project
    lacking = [flag for flag, value in needed.items() if not value]
    if lacking:
        raise InputError(
            f"a drill on {place.value} hits only what is named",
            got=f"no {', '.join(lacking)}",
            allowed=", ".join(needed),
            fix="name the context, and the pods by namespace and labels",
        )
    known = contexts(where.kubeconfig)
    if where.context not in known:
        raise InputError(
            "the kubeconfig has no such context",
            got=where.context,
            allowed=", ".join(known) or "none",
            fix="kubectl config get-contexts",
        )
    if place is Place.GKE and not where.context.startswith(f"gke_{where.project}_"):
        raise InputError(
            "context and project are not of one cluster",
            got=f"{where.context} with --project {where.project}",
            allowed=f"a context gke_{where.project}_LOCATION_CLUSTER",
            fix="gcloud container clusters get-credentials CLUSTER",
        )
    if not where.yes and not sys.stdin.isatty():
        raise InputError("nobody to ask", got="no terminal", allowed="an answer, or --yes", fix="add --yes")
    return where


def contexts(kubeconfig: Path | None) -> list[str]:
    from kubernetes import config

    try:
        known: Any = config.list_kube_config_contexts(str(kubeconfig) if kubeconfig else None)
    except config.ConfigException as error:
        raise Unjudged(f"no cluster to ask: {error}") from error
    return sorted(each["name"] for each in known[0])  # [1] is the current one: not asked


def builder(place: Place, where: Where) -> Callable[[Drill, Path], Target]:
    from workloads.drill.targets.cluster import Cluster, Named
    from workloads.drill.targets.gce import Gcloud, VmTaker
    from workloads.drill.targets.takers import Tainter
    from workloads.jobs.api import Api

    api = Api(where.kubeconfig, where.context)
    compute = Gcloud() if place is Place.GKE else None
    named = Named(namespace=where.namespace, selector=where.selector, events=where.events)

    def build(drill: Drill, _folder: Path) -> Target:
        taker = VmTaker(api, compute, where.project, drill.fault) if compute else Tainter(api)
        return Cluster(api, named, drill.fault, taker)

    return build


def consent(where: Where, ask: Callable[[str], str] = input) -> Callable[[Drill, Sequence[str]], None]:
    """Shows what will be done and asks for the context's name, unless --yes was given."""

    def agree(drill: Drill, victims: Sequence[str]) -> None:
        print(f"{drill.fault.value} will hit, in context {where.context}:", file=sys.stderr)
        for victim in victims:
            print(f"  {victim}", file=sys.stderr)
        if where.yes:
            return
        print("Type the name of the context to go on: ", end="", file=sys.stderr, flush=True)
        if ask("").strip() != where.context:
            raise Refused("the answer was not the name of the context")

    return agree
