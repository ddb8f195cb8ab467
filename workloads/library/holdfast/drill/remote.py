"""Drills on a cluster that is not the drill's own: what must be named, what is allowed, and who
must agree.

Nothing is taken from the current context: a drill that hits the wrong cluster is worse than none. A
cluster with a platform document is hit only where that allows drills, and VMs of GKE only in such a
cluster.
"""

# Why it is so: infra/decisions/0090.

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.clients import gcloud
from holdfast.clients.api import Api, list_contexts
from holdfast.drill.plan import Drill, Place
from holdfast.drill.target import Target
from holdfast.platform.cluster import no_document, published
from holdfast.support.errors import InputError, Stopped


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    kubeconfig: Path | None = None
    context: str = ""
    namespace: str = ""
    selector: str = ""
    yes: bool = False
    project: str = ""
    """Of the VMs, on GKE: that of the context's environment, never given by hand."""


def checked(place: Place, where: Where) -> Where:
    """Everything named, the context known and allowed, a person there to ask; the project filled
    in.
    """
    needed = {
        "--context": where.context,
        "--namespace": where.namespace,
        "--selector": where.selector,
    }
    lacking = [flag for flag, value in needed.items() if not value]
    if lacking:
        raise InputError(
            f"a drill on {place.value} needs the names of its targets",
            got=f"no {', '.join(lacking)}",
            allowed=", ".join(needed),
            fix="name the context, and the pods by namespace and labels",
        )
    known = list_contexts(where.kubeconfig)
    if where.context not in known:
        raise InputError(
            "the kubeconfig has no such context",
            got=where.context,
            allowed=", ".join(known) or "none",
            fix="kubectl config get-contexts",
        )
    where = _allowed(place, where)
    if not where.yes and not sys.stdin.isatty():
        raise InputError(
            "no terminal to ask on",
            got="no terminal",
            allowed="an answer, or --yes",
            fix="add --yes",
        )
    return where


def _allowed(place: Place, where: Where) -> Where:
    """Also of `cluster`: what the Eviction API takes in production is taken in production."""
    owner = published(Api(where.kubeconfig, where.context))
    if owner and not owner.drills:
        raise InputError(
            "this platform allows no drills",
            got=f"{where.context}, which is {owner}",
            allowed="a platform whose document says drills: true",
            fix=(
                "use another cluster; the platform team can set allow_drills=True in the"
                " environment"
            ),
        )
    if owner is None and (place is Place.GKE or where.context.startswith("gke_")):
        raise no_document(where.context)
    return replace(where, project=owner.project if owner else "")


def builder(place: Place, where: Where) -> Callable[[Drill, Path], Target]:
    from holdfast.drill.targets.cluster import Cluster, Named
    from holdfast.drill.targets.evictors import TaintEvictor, VmEvictor

    api = Api(where.kubeconfig, where.context)
    named = Named(namespace=where.namespace, selector=where.selector)
    if place is Place.GKE:
        gcloud.found()  # before anything is hit: in the middle, the drill would count as injected

    def build(drill: Drill, _folder: Path) -> Target:
        evictor = VmEvictor(api, where.project) if place is Place.GKE else TaintEvictor(api)
        return Cluster(api, named, drill.fault, evictor)

    return build


def consent(
    where: Where, ask: Callable[[str], str] = input
) -> Callable[[Drill, Sequence[str]], None]:
    """Shows what will be done and asks for the context's name, unless --yes was given."""

    def consent(drill: Drill, victims: Sequence[str]) -> None:
        budget = f"at most {drill.minutes:g} minutes and ${drill.usd:g}"
        print(
            f"{drill.name}: {drill.fault.value}, blast radius {drill.blast}, {budget}",
            file=sys.stderr,
        )
        print(f"stops when {drill.stop_when}; afterwards: {drill.rollback}", file=sys.stderr)
        print(f"it will affect, in context {where.context}:", file=sys.stderr)
        for victim in victims:
            print(f"  {victim}", file=sys.stderr)
        if where.yes:
            return
        print(
            "Type the name of the context to continue: ",
            end="",
            file=sys.stderr,
            flush=True,
        )
        if ask("").strip() != where.context:
            raise Stopped(
                "nothing was hit",
                got="another answer",
                allowed=where.context,
                fix="type the name of the context",
            )

    return consent
