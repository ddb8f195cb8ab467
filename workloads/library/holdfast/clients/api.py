"""Calls the Kubernetes API as JSON: paths in, dictionaries out.

Uses the official client's transport and credentials. Its typed models double the time of a long
list, and know neither JobSet nor Kueue.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.support.errors import HoldfastError, Unjudged

Object = dict[str, Any]
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"  # JSON is YAML
_PAGE = 500


class ApiError(HoldfastError, RuntimeError):
    """The API server refused; `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"{status}: {message}")


class Api:
    def __init__(self, kubeconfig: Path | None = None, context: str | None = None) -> None:
        """Connects as kubectl does: None stands for the user's kubeconfig and its current context.

        Raises Unjudged if the kubeconfig has no such cluster.
        """
        from kubernetes import config

        file = str(kubeconfig) if kubeconfig else None
        try:
            self.client = config.new_client_from_config(file, context)
            listing: Any = config.list_kube_config_contexts(file)
        except config.ConfigException as error:
            path = kubeconfig or config.KUBE_CONFIG_DEFAULT_LOCATION
            fix = "run your platform's get-credentials command, or give --kubeconfig FILE"
            raise Unjudged(f"no cluster in {path}: {error} {fix}") from error
        contexts, selected = listing
        for candidate in contexts:
            if candidate["name"] == context:
                selected = candidate
                break
        self.context = str(selected["name"])
        self.cluster = str(selected["context"]["cluster"])
        """The cluster's name in the kubeconfig; gcloud writes gke_PROJECT_LOCATION_NAME."""

    @classmethod
    def over(cls, client: Any) -> "Api":
        """Wraps a client that knows its server; there is no context."""
        api = cls.__new__(cls)
        api.client = client
        api.context = ""
        api.cluster = ""
        return api

    def call(
        self,
        method: str,
        path: str,
        query: Object,
        body: object = None,
        content_type: str = "application/json",
    ) -> Object:
        """Sends one request.

        Raises ApiError for a status of 400 and above, Unjudged without a response.
        """
        text = self._send(method, path, query, body, content_type)
        return json.loads(text) if text else {}

    def text(self, path: str, **query: object) -> str:
        """Returns a response that is not JSON, such as the log of a pod."""
        response = self._send("GET", path, query, None, "application/json", "*/*")
        return response.decode(errors="replace")

    def _send(
        self,
        method: str,
        path: str,
        query: Object,
        body: object,
        content_type: str,
        accept: str = "application/json",
    ) -> bytes:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        headers = {"Accept": accept, "Content-Type": content_type}
        parameters = [(key, str(value)) for key, value in query.items() if value is not None]
        request = self.client.param_serialize(
            method,
            path,
            query_params=parameters,
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self.client.call_api(*request, _request_timeout=60)
            text = response.read()
        except ApiException as error:
            raise ApiError(error.status or 0, _message(error.body)) from error
        except HTTPError as error:
            raise Unjudged(f"the cluster does not answer: {error}") from error
        if response.status >= 400:
            raise ApiError(response.status, _message(text))
        return text

    def get(self, path: str, **query: object) -> Object:
        return self.call("GET", path, query)

    def find(self, path: str) -> Object | None:
        """Returns the object, or None if it does not exist."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, **query: object) -> Iterator[Object]:
        """Yields every item of a list, page by page; none if the resource is unknown."""
        token: object = None
        while True:
            try:
                page = self.get(path, limit=_PAGE, **query | {"continue": token})
            except ApiError as error:
                if error.status == 404:
                    return
                raise
            yield from page.get("items", ())
            token = page["metadata"].get("continue") or None
            if token is None:
                return

    def path_of(self, body: Object) -> str:
        """Returns the path of an object of a manifest, by the cluster's discovery.

        Raises ApiError 404 if the cluster does not know the kind.
        """
        version = body["apiVersion"]
        kind = body["kind"]
        meta = body["metadata"]
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        discovery = self.find(group) or {"resources": []}
        for resource in discovery["resources"]:
            is_subresource = "/" in resource["name"]
            if resource["kind"] != kind or is_subresource:
                continue
            scope = ""
            if resource["namespaced"]:
                scope = f"/namespaces/{meta.get('namespace', 'default')}"
            return f"{group}{scope}/{resource['name']}/{meta['name']}"
        raise ApiError(404, f"the cluster does not know {version} {kind}")

    def create(self, path: str, body: Object, **query: object) -> Object:
        return self.call("POST", path, query, body)

    def replace(self, path: str, body: Object) -> Object:
        return self.call("PUT", path, {}, body)

    def patch(self, path: str, operations: list[Object]) -> Object:
        """Applies a JSON Patch, all of it or nothing."""
        return self.call("PATCH", path, {}, operations, JSON_PATCH)

    def merge(self, path: str, change: Object) -> Object:
        return self.call("PATCH", path, {}, change, MERGE)

    def apply(self, path: str, body: Object, **query: object) -> Object:
        """Applies an object on the server with strict validation: an unknown field is an error."""
        parameters = {
            "fieldManager": "holdfast",
            "force": "true",
            "fieldValidation": "Strict",
        } | query
        return self.call("PATCH", path, parameters, body, APPLY)

    def evict(self, namespace: str, pod: str) -> None:
        """Evicts a pod through the Eviction API, as a drain does.

        Raises ApiError 429 if a disruption budget forbids it now.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        }
        self.create(f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", body)

    def delete(self, path: str, **query: object) -> Object:
        return self.call("DELETE", path, query)


def connect(kubeconfig: str) -> Api:
    """Connects a process by its kubeconfig, or without one by the pod's service account."""
    from kubernetes import client, config

    if kubeconfig:
        return Api(Path(kubeconfig))
    try:
        config.load_incluster_config()
    except config.ConfigException as error:
        raise Unjudged(
            f"no cluster to watch: {error}; give --kubeconfig, or run in a pod"
        ) from error
    return Api.over(client.ApiClient())


def fix_of_unchangeable(error: ApiError, body: Object) -> str:
    """Returns the fix if an object exists with other values, which its kind cannot change.

    It is empty for any other refusal.
    """
    if error.status != 422 or "immutable" not in str(error):
        return ""
    name = f"{body['kind']} {body['metadata']['name']}"
    hint = ""
    if body["kind"] == "PersistentVolume":
        hint = " (what it points to stays, if its reclaim policy is Retain)"
    return (
        "check that this is the cluster of this environment; if it is, `kubectl delete"
        f" {name}`{hint}, then repeat"
    )


def _message(text: object) -> str:
    raw = text.decode(errors="replace") if isinstance(text, bytes) else str(text or "")
    try:
        return str(json.loads(raw)["message"])
    except (ValueError, KeyError, TypeError):
        return raw[:300]
