"""Identifies the platform of a cluster.

The document in the cluster says it or, where there is none yet, the cluster's name and project.
"""

import os
import re
from pathlib import Path

from holdfast.clients.api import Api
from holdfast.platform import codec
from holdfast.platform.document import Platform
from holdfast.support.errors import InputError, Stopped
from holdfast.vocabulary.environment import ENV_PLATFORM
from holdfast.vocabulary.roles import NAMESPACE_MONITORING

NAME = "holdfast-platform"
PATH = f"/api/v1/namespaces/{NAMESPACE_MONITORING}/configmaps/{NAME}"
_GKE = re.compile(r"gke_([^_]+)_([^_]+)_([^_]+)")
_PROVIDER = re.compile(r"gce://([^/]+)/")


def read_published(api: Api) -> Platform | None:
    """Returns the document in the cluster; None where it has none.

    Raises InputError for one that cannot be read.
    """
    config_map = api.find(PATH)
    if config_map is None:
        return None
    text = (config_map.get("data") or {}).get(codec.FILE, "")
    return codec.parse(text, f"ConfigMap {NAMESPACE_MONITORING}/{NAME}")


def find_nearest(document: Path | None, folder: Path | None = None) -> Platform | None:
    """Reads `document`, else HOLDFAST_PLATFORM, else the nearest platform.json.

    The nearest one is in `folder` or above it; None where there is none.
    """
    if document is not None:
        return codec.read(document)
    variable = os.environ.get(ENV_PLATFORM)
    if variable:
        return codec.read(Path(variable))
    if folder is None:
        return None
    start = folder.resolve()
    for parent in (start, *start.parents):
        if (parent / codec.FILE).is_file():
            return codec.read(parent / codec.FILE)
    return None


def choose(api: Api, document: Path | None, folder: Path | None = None) -> Platform:
    """Returns the platform of the cluster, which `document`, or the nearest one, must describe.

    Raises Stopped where the two differ, and InputError where the cluster has no document.
    """
    local_platform = find_nearest(document, folder)
    if local_platform is not None:
        require_same_cluster(api, local_platform)
    platform = read_published(api)
    if platform is None:
        raise no_document(f"no ConfigMap {NAME} in {NAMESPACE_MONITORING} of {api.cluster}")
    return platform


def no_document(got: str) -> InputError:
    return InputError(
        "the cluster has no platform document",
        got=got,
        allowed="a cluster to which the platform was applied",
        fix="choose another context with --context, or ask the platform team to apply the platform",
    )


def require_same_cluster(api: Api, platform: Platform) -> bool:
    """Returns whether the cluster already has the document of `platform`.

    Raises Stopped if it is another platform's cluster.
    """
    cluster_platform = read_published(api)
    if cluster_platform is not None:
        is_same_cluster = platform.identity == cluster_platform.identity
        if platform.name != cluster_platform.name or not is_same_cluster:
            raise _stop(platform, str(cluster_platform))
        return True
    match = _GKE.fullmatch(api.cluster)
    if match:
        project, location, name = match.groups()
        has_name = (project, name) == (platform.project, platform.cluster)
        # A zonal cluster is in a zone of the region.
        has_region = f"{location}-".startswith(f"{platform.region}-")
        if not has_name or not has_region:
            raise _stop(platform, f"{project}/{location}/{name}")
    projects = _list_projects(api)
    if projects - {platform.project}:
        raise _stop(platform, f"nodes of project {', '.join(sorted(projects))}")
    return False


def _list_projects(api: Api) -> set[str]:
    """Lists the Google Cloud projects of the nodes; empty where nodes have no provider."""
    projects: set[str] = set()
    for node in api.get("/api/v1/nodes", limit=10).get("items", ()):
        provider_id = node.get("spec", {}).get("providerID") or ""
        match = _PROVIDER.match(provider_id)
        if match:
            projects.add(match[1])
    return projects


def _stop(platform: Platform, got: str) -> Stopped:
    return Stopped(
        "this is the cluster of another platform; nothing was changed",
        got=got,
        allowed=str(platform),
        fix=(
            f"gcloud container clusters get-credentials {platform.cluster}"
            f" --region={platform.region} --project={platform.project}"
        ),
    )
