"""Requests to the Kubernetes API server with the pod's service account. Standard library only."""

import json
import os
import ssl
import urllib.request
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, cast

from holdfast.vocabulary.kubernetes import ACCOUNT_FOLDER

ACCOUNT = Path(ACCOUNT_FOLDER)


def get(path: str, *, timeout_s: float) -> Any:
    """Returns an object. Raises OSError, KeyError and ValueError as `open_path` and JSON do."""
    with open_path(path, timeout_s=timeout_s) as response:
        return json.load(response)


def merge(path: str, patch: Any, *, timeout_s: float) -> None:
    """Changes the fields of an object that are in `patch`. Raises like `open_path`."""
    with open_path(path, timeout_s=timeout_s, patch=patch) as response:
        response.read()


def open_path(path: str, *, timeout_s: float, patch: Any = None) -> HTTPResponse:
    """Sends a GET request, or a merge patch, and returns the response, which the caller closes.

    `timeout_s` bounds each wait for bytes, also within a watch. Raises OSError if the server
    refuses or cannot be reached, KeyError outside a cluster.
    """
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    # The token is read for each request: the kubelet replaces it while the pod runs.
    token = (ACCOUNT / "token").read_text(encoding="utf-8").strip()
    request = urllib.request.Request(
        f"https://{host}:{port}{path}",
        headers={"Authorization": f"Bearer {token}"},
    )
    if patch is not None:
        request.method = "PATCH"
        request.data = json.dumps(patch).encode()
        request.add_header("Content-Type", "application/merge-patch+json")
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    response = urllib.request.urlopen(request, timeout=timeout_s, context=context)
    return cast("HTTPResponse", response)
