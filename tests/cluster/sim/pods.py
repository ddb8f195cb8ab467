"""Tells a simulated kubelet what to do with a pod, and computes the variables that a real one sets.

A pod that has disappeared meanwhile counts as one that obeyed.
"""

import re
from collections.abc import Generator
from contextlib import contextmanager

from holdfast.clients.api import Api, ApiError, Object
from tests.cluster.sim.stages import EXIT_CODE, RUN_S

_FIELD = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


def end(api: Api, pod: Object, code: int = 0) -> None:
    """Lets the processes of a pod end, as if their run time were over."""
    annotate(api, pod, {RUN_S: "0"} | ({EXIT_CODE: str(code)} if code else {}))


def annotate(api: Api, pod: Object, annotations: dict[str, str]) -> None:
    with if_there():
        api.merge(path(pod), {"metadata": {"annotations": annotations}})


@contextmanager
def if_there() -> Generator[None]:
    """Ignores that the object is gone."""
    try:
        yield
    except ApiError as error:
        if error.status != 404:
            raise


def path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def environment(pod: Object) -> dict[str, str]:
    """Returns the variables of the main container, as the kubelet would resolve them."""
    values: dict[str, str] = {}
    for entry in pod["spec"]["containers"][0]["env"]:
        field_path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        match = _FIELD.fullmatch(field_path)
        if match:
            values[entry["name"]] = pod["metadata"].get(match[1], {}).get(match[2], "")
        elif field_path:
            section, _, name = field_path.partition(".")
            values[entry["name"]] = str(pod[section].get(name, ""))
        else:
            values[entry["name"]] = expand_variables(entry.get("value", ""), values)
    return values


def expand_variables(text: str, before: dict[str, str]) -> str:
    """Replaces each $(NAME) by its value in `before`; an unknown name stays as it is."""
    return re.sub(r"\$\((\w+)\)", lambda match: before.get(match[1], match[0]), text)
