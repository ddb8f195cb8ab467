"""Two read-only calls to Google: credentials that the machine already has, JSON in, JSON out.

A key or token travels in a header, never in an address, so that no error
message and no log can show it.
"""

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from holdfast.contract.errors import Unjudged

ENV_API_KEY = "HOLDFAST_BILLING_API_KEY"
ENV_TOKEN = "HOLDFAST_GOOGLE_TOKEN"
TIMEOUT_S = 60


def credentials(*, key_is_enough: bool) -> dict[str, str]:
    """The header that proves who asks: an API key where that is enough, else a token of the environment or gcloud."""
    # A key opens the price list only; whatever belongs to a project needs a token.
    if key_is_enough and (key := os.environ.get(ENV_API_KEY)):
        return {"X-Goog-Api-Key": key}
    if token := os.environ.get(ENV_TOKEN) or _gcloud_token():
        return {"Authorization": f"Bearer {token}"}
    wanted = f"{ENV_API_KEY}, " if key_is_enough else ""
    raise Unjudged(f"no Google credentials; set {wanted}{ENV_TOKEN}, or log in with gcloud auth application-default")


def call(url: str, headers: Mapping[str, str], body: Mapping[str, object] | None = None) -> dict[str, Any]:
    """GET, or POST with a body. Unjudged when Google does not answer with JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json", **headers})
    # The query may carry a page token; messages show the address without it.
    address = url.split("?")[0]
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        # The body of an error may repeat what was sent.
        error.close()
        raise Unjudged(f"{address} answered {error.code} {error.reason}") from error
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        raise Unjudged(f"{address}: {getattr(error, 'reason', error)}") from error


def _gcloud_token() -> str:
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        return ""
    # Application default credentials: those of `gcloud auth login` are refused by client libraries.
    command = [gcloud, "auth", "application-default", "print-access-token"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    return done.stdout.strip() if done.returncode == 0 else ""
