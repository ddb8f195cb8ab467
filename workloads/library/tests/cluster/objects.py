"""Reads what tests of the cluster compare of several Kubernetes objects at once."""

from collections.abc import Iterable

from holdfast.clients.api import Object


def list_uids(objects: Iterable[Object]) -> set[str]:
    return {item["metadata"]["uid"] for item in objects}


def list_names(objects: Iterable[Object]) -> list[str]:
    return [item["metadata"]["name"] for item in objects]


def list_nodes(pods: Iterable[Object]) -> set[str]:
    """Returns the nodes of pods that have one each."""
    return {pod["spec"]["nodeName"] for pod in pods}


def list_conditions(item: Object) -> list[str]:
    """Returns the types of the conditions of an object, whatever their status."""
    return [condition["type"] for condition in item.get("status", {}).get("conditions", ())]
