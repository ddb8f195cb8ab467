"""Checks before drills on a shared cluster: complete names, permission and consent.

The current context is never used: a drill that hits the wrong cluster is worse than none. A cluster
with a platform document is hit only if the document allows drills, and VMs of GKE only in such a
cluster.
"""

# Why it is so: infra/decisions/0090.

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.clients import gcloud
from holdfast.clients.api import Api
from holdfast.clients.kubeconfig import list_contexts
from holdfast.drill.plan import Drill, Place
from holdfast.drill.target import Target
from holdfast.platform.cluster import no_document, read_published
from holdfast.support.errors import InputError, Stopped


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """The targets of a drill on a cluster, as given on the command line."""

    kubeconfig: Path | None = None
    context: str = ""
    namespace: str = ""
    selector: str = ""
    yes: bool = False
    project: str = ""
    """The project of the VMs on GKE, read from the platform document of the context."""


def check(place: Place, scope: Scope) -> Scope:
    """Returns `scope` with the project of the platform.

    Raises InputError if a name is missing, the context is unknown or allows no drills, or there is
    no terminal to ask on.
    """
    options = {
        "--context": scope.context,
        "--namespace": scope.namespace,
        "--selector": scope.selector,
    }
    missing = [flag for flag, value in options.items() if not value]
    if missing:
        raise InputError(
            f"a drill on {place.value} needs the names of its targets",
            got=f"no {', '.join(missing)}",
            allowed=", ".join(options),
            fix="name the context, and the pods by namespace and labels",
        )
    contexts = list_contexts(scope.kubeconfig)
    if scope.context not in contexts:
        raise InputError(
            "the kubeconfig has no such context",
            got=scope.context,
            allowed=", ".join(contexts) or "none",
            fix="kubectl config get-contexts",
        )
    scope = _check_platform(place, scope)
    if not scope.yes and not sys.stdin.isatty():
        raise InputError(
            "no terminal to ask on",
            got="no terminal",
            allowed="an answer, or --yes",
            fix="add --yes",
        )
    return scope


def _check_platform(place: Place, scope: Scope) -> Scope:
    """Adds the project of the platform. Raises InputError if the platform allows no drills.

    The check also applies to `cluster`: the Eviction API ends pods of production too.
    """
    owner = read_published(Api(scope.kubeconfig, scope.context))
    if owner and not owner.drills:
        raise InputError(
            "this platform allows no drills",
            got=f"{scope.context}, which is {owner}",
            allowed="a platform whose document says drills: true",
            fix=(
                "use another cluster; the platform team can set allow_drills=True in the"
                " environment"
            ),
        )
    if owner is None and (place is Place.GKE or scope.context.startswith("gke_")):
        raise no_document(scope.context)
    return replace(scope, project=owner.project if owner else "")


def make_builder(place: Place, scope: Scope) -> Callable[[Drill, Path], Target]:
    """Returns a function that makes the target of a drill on this cluster."""
    from holdfast.drill.targets.cluster import Cluster, Named
    from holdfast.drill.targets.evictors import TaintEvictor, VmEvictor

    api = Api(scope.kubeconfig, scope.context)
    named = Named(namespace=scope.namespace, selector=scope.selector)
    if place is Place.GKE:
        gcloud.find_gcloud()  # checked early: after the fault, a failure would count as injected

    def build(drill: Drill, _folder: Path) -> Target:
        evictor = VmEvictor(api, scope.project) if place is Place.GKE else TaintEvictor(api)
        return Cluster(api, named, drill.fault, evictor)

    return build


def make_consent(
    scope: Scope, ask: Callable[[str], str] = input
) -> Callable[[Drill, Sequence[str]], None]:
    """Returns a function that prints the plan and asks for the context's name, except with --yes.

    The function raises Stopped on another answer.
    """

    def consent(drill: Drill, victims: Sequence[str]) -> None:
        budget = f"at most {drill.minutes:g} minutes and ${drill.usd:g}"
        print(
            f"{drill.name}: {drill.fault.value}, blast radius {drill.blast}, {budget}",
            file=sys.stderr,
        )
        print(f"stops when {drill.stop_when}; afterwards: {drill.rollback}", file=sys.stderr)
        print(f"it will affect, in context {scope.context}:", file=sys.stderr)
        for victim in victims:
            print(f"  {victim}", file=sys.stderr)
        if scope.yes:
            return
        print(
            "Type the name of the context to continue: ",
            end="",
            file=sys.stderr,
            flush=True,
        )
        if ask("").strip() != scope.context:
            raise Stopped(
                "nothing was hit",
                got="another answer",
                allowed=scope.context,
                fix="type the name of the context",
            )

    return consent
