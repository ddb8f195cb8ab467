"""The Kubernetes API as JSON: paths in, dictionaries out, through the official client's transport
and credentials.

Dictionaries, since the typed models double the time of a long list and know neither JobSet nor
Kueue.
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
        """None takes the user's own kubeconfig and its current context, as kubectl does."""
        from kubernetes import config

        file = str(kubeconfig) if kubeconfig else None
        try:
            self.client = config.new_client_from_config(file, context)
            known: Any = config.list_kube_config_contexts(file)
        except config.ConfigException as error:
            where = kubeconfig or config.KUBE_CONFIG_DEFAULT_LOCATION
            fix = "run your platform's get-credentials command, or give --kubeconfig FILE"
            raise Unjudged(f"no cluster in {where}: {error} {fix}") from error
        chosen = next((each for each in known[0] if each["name"] == context), known[1])
        self.context = str(chosen["name"])
        self.cluster = str(chosen["context"]["cluster"])
        """As the kubeconfig names it; gcloud writes gke_PROJECT_LOCATION_NAME."""

    @classmethod
    def over(cls, client: Any) -> "Api":
        """Over a client that knows its server; no context."""
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
        """One request. Raises ApiError for an answer of 400 and above."""
        text = self._sent(method, path, query, body, content_type)
        return json.loads(text) if text else {}

    def text(self, path: str, **query: object) -> str:
        """What is no JSON, as the log of a pod."""
        return self._sent("GET", path, query, None, "application/json", "*/*").decode(
            errors="replace"
        )

    def _sent(
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
        """The object, or None where there is none."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, **query: object) -> Iterator[Object]:
        """Every item of a list, page by page. A resource that the cluster does not know has none."""
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
        """Where an object of a manifest lives, as the cluster's own discovery says."""
        version = body["apiVersion"]
        meta = body["metadata"]
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        known = self.find(group) or {"resources": []}
        found = next(
            (r for r in known["resources"] if r["kind"] == body["kind"] and "/" not in r["name"]),
            None,
        )
        if found is None:
            raise ApiError(404, f"the cluster does not know {version} {body['kind']}")
        scope = f"/namespaces/{meta.get('namespace', 'default')}" if found["namespaced"] else ""
        return f"{group}{scope}/{found['name']}/{meta['name']}"

    def create(self, path: str, body: Object, **query: object) -> Object:
        return self.call("POST", path, query, body)

    def replace(self, path: str, body: Object) -> Object:
        return self.call("PUT", path, {}, body)

    def patch(self, path: str, operations: list[Object]) -> Object:
        """JSON Patch: all of it or nothing."""
        return self.call("PATCH", path, {}, operations, JSON_PATCH)

    def merge(self, path: str, change: Object) -> Object:
        return self.call("PATCH", path, {}, change, MERGE)

    def apply(self, path: str, body: Object, **query: object) -> Object:
        """Server-side apply with strict field validation: an unknown field is an error, not a
        warning.
        """
        parameters = {
            "fieldManager": "holdfast",
            "force": "true",
            "fieldValidation": "Strict",
        } | query
        return self.call("PATCH", path, parameters, body, APPLY)

    def evict(self, namespace: str, pod: str) -> None:
        """Through the Eviction API, as a drain does it. Raises ApiError 429 where a budget refuses
        now.
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
    """For a process of a pod: by the file, or without one by the pod's service account."""
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
    """For an object that is there with other values, which its kind never changes; empty for any
    other refusal.
    """
    if error.status != 422 or "immutable" not in str(error):
        return ""
    what = f"{body['kind']} {body['metadata']['name']}"
    if body["kind"] == "PersistentVolume":
        kept = " (what it points to stays, if its reclaim policy is Retain)"
    else:
        kept = ""
    return (
        "check that this is the cluster of this environment; if it is, `kubectl delete"
        f" {what}`{kept}, then repeat"
    )


def _message(text: object) -> str:
    raw = text.decode(errors="replace") if isinstance(text, bytes) else str(text or "")
    try:
        return str(json.loads(raw)["message"])
    except (ValueError, KeyError, TypeError):
        return raw[:300]
