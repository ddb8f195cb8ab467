"""Which platform a cluster is: by the document in it, or, where there is none yet, by its own name
and project.
"""

import os
import re
from pathlib import Path

from holdfast.clients.api import Api
from holdfast.platform import reading
from holdfast.platform.document import Platform
from holdfast.support.errors import InputError, Stopped
from holdfast.vocabulary.environment import ENV_PLATFORM
from holdfast.vocabulary.roles import NAMESPACE_MONITORING

NAME = "holdfast-platform"
PATH = f"/api/v1/namespaces/{NAMESPACE_MONITORING}/configmaps/{NAME}"
_GKE = re.compile(r"gke_([^_]+)_([^_]+)_([^_]+)")
_PROVIDER = re.compile(r"gce://([^/]+)/")


def published(api: Api) -> Platform | None:
    """The document in the cluster; None where it has none. Raises InputError for one that cannot be
    read.
    """
    found = api.find(PATH)
    if found is None:
        return None
    text = (found.get("data") or {}).get(reading.FILE, "")
    return reading.parse(text, f"ConfigMap {NAMESPACE_MONITORING}/{NAME}")


def nearest(given: Path | None, near: Path | None = None) -> Platform | None:
    """The document of `given`, of HOLDFAST_PLATFORM, or of the nearest platform.json at or above
    the folder `near`.
    """
    if given is not None:
        return reading.read(given)
    named = os.environ.get(ENV_PLATFORM)
    if named:
        return reading.read(Path(named))
    if near is None:
        return None
    folder = near.resolve()
    found = next(
        (path for each in (folder, *folder.parents) if (path := each / reading.FILE).is_file()),
        None,
    )
    return reading.read(found) if found else None


def choose(api: Api, given: Path | None, near: Path | None = None) -> Platform:
    """The platform of the cluster, which a document that is named or found near must describe.

    Raises Stopped where the two differ, and InputError where the cluster has no document.
    """
    local = nearest(given, near)
    if local is not None:
        require_cluster_of(api, local)
    found = published(api)
    if found is None:
        raise no_document(f"no ConfigMap {NAME} in {NAMESPACE_MONITORING} of {api.cluster}")
    return found


def no_document(got: str) -> InputError:
    allowed = "a cluster to which the platform was applied"
    fix = "the platform team runs make apply ENV=NAME"
    return InputError(
        "the cluster has no platform document",
        got=got,
        allowed=allowed,
        fix=fix,
    )


def require_cluster_of(api: Api, given: Platform) -> bool:
    """Whether the cluster already has the document of `given`. Raises Stopped where it is another
    platform's cluster.
    """
    found = published(api)
    if found is not None:
        if (given.name, given.identity) != (found.name, found.identity):
            raise _stopped(given, str(found))
        return True
    match = _GKE.fullmatch(api.cluster)
    if match:
        project, location, name = match.groups()
        if (project, name) != (given.project, given.cluster) or not location.startswith(
            given.region
        ):
            raise _stopped(given, f"{project}/{location}/{name}")
    projects = _projects(api)
    if projects - {given.project}:
        raise _stopped(given, f"nodes of project {', '.join(sorted(projects))}")
    return False


def _projects(api: Api) -> set[str]:
    """Google Cloud projects of the nodes; empty where nodes have no provider."""
    page = api.get("/api/v1/nodes", limit=10).get("items", ())
    found = (_PROVIDER.match(node.get("spec", {}).get("providerID") or "") for node in page)
    return {match[1] for match in found if match}


def _stopped(given: Platform, got: str) -> Stopped:
    return Stopped(
        "this is the cluster of another platform; nothing was changed",
        got=got,
        allowed=str(given),
        fix=(
            f"gcloud container clusters get-credentials {given.cluster} --region={given.region}"
            f" --project={given.project}"
        ),
    )
