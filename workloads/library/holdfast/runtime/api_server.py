"""Requests to the Kubernetes API server with the pod's own service account; standard library only."""

import os
import ssl
import urllib.request
from http.client import HTTPResponse
from pathlib import Path
from typing import cast

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def opened(path: str, *, timeout_s: float) -> HTTPResponse:
    """The answer, to be closed by the caller. OSError when refused or unreachable, KeyError outside
    a cluster.

    `timeout_s` bounds each wait for bytes, also within a watch.
    """
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    # The token is read for each request: the kubelet replaces it while the pod runs.
    token = (ACCOUNT / "token").read_text(encoding="utf-8").strip()
    request = urllib.request.Request(
        f"https://{host}:{port}{path}", headers={"Authorization": f"Bearer {token}"}
    )
    trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    return cast("HTTPResponse", urllib.request.urlopen(request, timeout=timeout_s, context=trusted))
