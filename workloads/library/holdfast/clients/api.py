"""Calls the Kubernetes API as JSON: paths in, dictionaries out.

Uses the official client's transport and credentials. Its typed models double the time of a long
list, and know neither JobSet nor Kueue.
"""

import json
import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.clients.kubeconfig import (
    make_configuration,
    reading,
    require_context,
    requiring_credentials,
)
from holdfast.support.errors import Unjudged

Object = dict[str, Any]
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"  # JSON is YAML
_PAGE = 500
_CHUNK_BYTES = 1 << 16
_CONNECT_S = 10.0
_READ_S = 60.0


class ApiError(Unjudged):
    """The API server refused; `status` is its HTTP status.

    A command that does not handle it ends as for any other Unjudged.
    """

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.message = message
        problem, fix = _describe_status(status)
        super().__init__(problem, got=f"{status}: {message}", fix=fix)

    def __str__(self) -> str:
        return self.got

    def __reduce__(self) -> tuple[type["ApiError"], tuple[int, str]]:
        return type(self), (self.status, self.message)


def _describe_status(status: int) -> tuple[str, str]:
    """Return what an HTTP status means, and how to fix it."""
    if status == 401:
        return (
            "the cluster does not accept your credentials",
            "log in again (`gcloud auth login`), then run your platform's get-credentials command",
        )
    if status == 403:
        return (
            "the cluster does not allow this to you",
            "add --namespace NAME if the command has it, or ask the platform team for the right",
        )
    if status == 429:
        return "the cluster has too many requests", "run the command again in a minute"
    if status >= 500:
        return (
            "the API server of the cluster failed",
            "run the command again; if it fails again, the platform team finds the cause with"
            " `kubectl get --raw '/readyz?verbose'`",
        )
    return (
        "the cluster refuses the request",
        "check the server and the context of the kubeconfig with `kubectl config view --minify`",
    )


class Api:
    def __init__(self, kubeconfig: Path | None = None, context: str | None = None) -> None:
        """Connects as kubectl does: without arguments by the user's kubeconfig and its current
        context.

        Raises InputError if the kubeconfig has no such context, and Unjudged if it cannot be used.
        """
        from kubernetes import config

        context = context or None
        file = str(kubeconfig) if kubeconfig else None
        if context:
            require_context(kubeconfig, context)
        with reading(kubeconfig):
            with requiring_credentials() as configuration:
                self.client = config.new_client_from_config(
                    file, context, client_configuration=configuration
                )
            listing: Any = config.list_kube_config_contexts(file)
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
        """Sends one request. Raises ApiError for a status of 400 and above."""
        text = self._send(method, path, query, body, content_type)
        if not text:
            return {}
        try:
            answer: Any = json.loads(text)
        except ValueError:
            raise self._foreign(_message(text)) from None
        if not isinstance(answer, dict):
            raise self._foreign(_message(text))
        return answer

    def text(self, path: str, **query: object) -> str:
        """Returns a response that is not JSON, such as the log of a pod."""
        response = self._send("GET", path, query, None, "application/json", "*/*")
        return response.decode(errors="replace")

    def lines(self, path: str, **query: object) -> Iterator[str]:
        """Yields the lines of a response that may grow for hours, such as a log that is followed.

        The server may stay silent for any time. Raises ApiError, and Unjudged if it is lost.
        """
        with self._reporting_failures():
            response = self._open("GET", path, query, None, "application/json", "*/*", read_s=None)
            if response.status >= 400:
                self._require_success(response.status, response.read())
            stream = response.response
            try:
                yield from _split_lines(stream.stream(_CHUNK_BYTES))
            finally:
                stream.close()

    def _send(
        self,
        method: str,
        path: str,
        query: Object,
        body: object,
        content_type: str,
        accept: str = "application/json",
    ) -> bytes:
        with self._reporting_failures():
            response = self._open(method, path, query, body, content_type, accept)
            text = response.read()
        self._require_success(response.status, text)
        return text

    def _open(
        self,
        method: str,
        path: str,
        query: Object,
        body: object,
        content_type: str,
        accept: str,
        *,
        read_s: float | None = _READ_S,
    ) -> Any:
        """Sends one request, and returns the response before its body is read."""
        headers = {"Accept": accept, "Content-Type": content_type}
        parameters: list[tuple[str, str]] = []
        for key, value in query.items():
            if value is not None:
                parameters.append((key, str(value)))
        request = self.client.param_serialize(
            method,
            path,
            query_params=parameters,
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        return self.client.call_api(*request, _request_timeout=(_CONNECT_S, read_s))

    @contextmanager
    def _reporting_failures(self) -> Generator[None]:
        """Raises the library's own errors for those of the transport."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as error:
            if not error.status:  # the client's own form of a TLS error
                raise self._unreachable(f"TLS: {error.reason}") from error
            raise ApiError(error.status, _message(error.body)) from error
        # ValueError: a server or a token that no HTTP request can hold.
        except (HTTPError, OSError, ValueError) as error:
            raise self._unreachable(_describe_failure(error)) from error

    def _require_success(self, status: int, text: bytes) -> None:
        if status == 404 and _is_html(text):
            # Not `not found`: a page of a proxy says nothing about an object.
            raise self._foreign(_message(text))
        if status >= 400:
            raise ApiError(status, _message(text))

    def _unreachable(self, reason: str) -> Unjudged:
        return Unjudged(
            f"the cluster at {self._server} does not answer",
            got=reason,
            fix="check the network, the VPN and the proxy; if the cluster is new, run your"
            " platform's get-credentials command",
        )

    def _foreign(self, text: str) -> Unjudged:
        return Unjudged(
            f"what answers at {self._server} is no Kubernetes API",
            got=text,
            fix="log in to the network or its proxy, and check `server` in the kubeconfig",
        )

    @property
    def _server(self) -> str:
        return str(self.client.configuration.host)

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
            yield from page.get("items") or ()
            token = (page.get("metadata") or {}).get("continue") or None
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


def _split_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yields whole lines without their ends, and what follows the last end."""
    rest = b""
    for chunk in chunks:
        *whole_lines, rest = (rest + chunk).split(b"\n")
        for line in whole_lines:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def connect(kubeconfig: str) -> Api:
    """Connects a process by its kubeconfig, or without one by the pod's service account."""
    from kubernetes import client, config

    if kubeconfig:
        return Api(Path(kubeconfig))
    configuration = make_configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException as error:
        raise Unjudged(
            "no cluster to watch", got=str(error), fix="give --kubeconfig, or run in a pod"
        ) from error
    return Api.over(client.ApiClient(configuration))


def suggest_fix(error: ApiError, body: Object) -> str:
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
    raw = _decode(text)
    try:
        return str(json.loads(raw)["message"])
    except (ValueError, KeyError, TypeError):
        pass
    if _is_html(text):
        title = re.search(r"<title[^>]*>([^<]*)", raw, re.IGNORECASE)
        name = " ".join(title[1].split()) if title else ""
        return f"an HTML page, {name[:100]}" if name else "an HTML page"
    return " ".join(raw.split())[:300] or "an empty answer"


def _is_html(text: object) -> bool:
    return _decode(text).lstrip().startswith("<")


def _decode(text: object) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text or "")


def _describe_failure(error: Exception) -> str:
    """Return why no answer came, without the transport's object names and addresses."""
    from urllib3 import exceptions

    cause: object = error.reason if isinstance(error, exceptions.MaxRetryError) else error
    if isinstance(cause, exceptions.ProxyError):
        return "the proxy does not answer"
    if isinstance(cause, exceptions.NameResolutionError):
        return "the host name is unknown"
    if isinstance(cause, exceptions.NewConnectionError):
        origin = cause.__cause__
        reason = origin.strerror if isinstance(origin, OSError) else None
        return (reason or "no connection").lower()
    if isinstance(cause, exceptions.ConnectTimeoutError):
        return f"no connection within {_CONNECT_S:.0f} s"
    if isinstance(cause, exceptions.ReadTimeoutError):
        return f"connected, but no answer within {_READ_S:.0f} s"
    if isinstance(cause, exceptions.LocationValueError):
        return "the server's address is not a URL"
    if isinstance(cause, exceptions.SSLError):
        return f"TLS: {cause}"
    if isinstance(cause, exceptions.ProtocolError):
        return "the connection ended before the answer"
    if isinstance(cause, OSError):
        return cause.strerror or type(cause).__name__
    return "the request or the answer is not valid HTTP"
