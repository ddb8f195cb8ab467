"""What a simulated kubelet is to do with one pod. A pod that is gone meanwhile is as good as one that obeyed."""

from holdfast.clients.api import Api, ApiError, Object
from tests.cluster.sim.stages import EXIT_CODE, RUN_S


def end(api: Api, pod: Object, code: int = 0) -> None:
    """Its processes come to their own end, as if their run time were over."""
    annotate(api, pod, {RUN_S: "0"} | ({EXIT_CODE: str(code)} if code else {}))


def annotate(api: Api, pod: Object, annotations: dict[str, str]) -> None:
    try:
        api.merge(path(pod), {"metadata": {"annotations": annotations}})
    except ApiError as error:
        if error.status != 404:
            raise


def path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
