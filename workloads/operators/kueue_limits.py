"""What the cluster's Kueue, which another team may run, does to jobs that wait for their nodes. Only reads."""

import re
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from holdfast.clients.api import Api, ApiError, Object
from holdfast.contract.errors import Unjudged
from holdfast.manifests.waiting_for_pods import FIX, GATE, hazards
from workloads.operators.catalogue import KUEUE
from workloads.operators.overlay import CONFIG_FILE

NAME = "kueue-manager-config"
FORBIDDEN = (401, 403)
SINCE = (0, 19)
"""From this version on it is on unless switched off."""


def judged(api: Api) -> tuple[bool, str, str]:
    """Whether it is well, what was found, the fix. Raises Unjudged where nothing could be read."""
    found = _configurations(api)
    if not found:
        raise Unjudged(f"no ConfigMap {NAME}: Kueue is not installed, or its configuration has another name")
    effects = [effect for body in found for effect in _effects(api, body)]
    place = f"{found[0]['metadata']['namespace']}/{NAME}"
    fix = f"in {CONFIG_FILE} of ConfigMap {place}: {FIX}; then restart {KUEUE.deployment}"
    return not effects, f"{place}: " + ("; ".join(effects) or "a job that waits for its nodes is left alone"), fix


def _configurations(api: Api) -> list[Object]:
    try:
        try:
            return [*api.items("/api/v1/configmaps", fieldSelector=f"metadata.name={NAME}")]
        except ApiError as error:  # who may not list may still read where Kueue usually is
            if error.status not in FORBIDDEN:
                raise
            found = api.find(f"/api/v1/namespaces/{KUEUE.namespace}/configmaps/{NAME}")
            return [found] if found else []
    except ApiError as error:
        if error.status not in FORBIDDEN:
            raise
        raise Unjudged(f"not checked: this account cannot read ConfigMap {KUEUE.namespace}/{NAME}") from error


def _effects(api: Api, body: Object) -> list[str]:
    text = (body.get("data") or {}).get(CONFIG_FILE, "")
    try:
        configuration = YAML(typ="safe", pure=True).load(text)
    except YAMLError:
        configuration = None
    if not isinstance(configuration, Mapping):
        raise Unjudged(f"{CONFIG_FILE} of ConfigMap {body['metadata']['namespace']}/{NAME} is not a YAML map")
    version, arguments = _deployed(api, body["metadata"]["namespace"])
    # Gates are given in one of two places.
    if re.search(rf"--feature-gates[= ]\S*\b{GATE}=true\b", arguments):
        return []
    return [effect for _, effect in hazards(configuration, by_default=version is None or version >= SINCE)]


def _deployed(api: Api, namespace: str) -> tuple[tuple[int, int] | None, str]:
    """Version, None where nothing says it, and arguments."""
    try:
        found: Mapping[str, Any] = (
            api.find(f"/apis/apps/v1/namespaces/{namespace}/deployments/{KUEUE.deployment}") or {}
        )
    except ApiError as error:
        if error.status not in FORBIDDEN:
            raise
        found = {}
    containers = found.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
    label = found.get("metadata", {}).get("labels", {}).get("app.kubernetes.io/version", "")
    images = " ".join(each.get("image", "") for each in containers)
    version = re.search(r"v(\d+)\.(\d+)\.\d+", f"{label} {images}")
    arguments = " ".join(word for each in containers for word in each.get("args", []))
    return (int(version[1]), int(version[2])) if version else None, arguments
