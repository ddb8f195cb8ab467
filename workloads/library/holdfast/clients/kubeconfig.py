"""Reads a kubeconfig as kubectl does, with errors of our own and retries that end soon.

The official client checks little of a kubeconfig, only logs that a credential plugin failed, and
waits for as long as a server asks.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from holdfast.support.errors import InputError, Unjudged

_RETRIES = 3
_LONGEST_RETRY_AFTER_S = 5.0
_GET_CREDENTIALS = "run your platform's get-credentials command, or set KUBECONFIG to another file"


def list_contexts(kubeconfig: Path | None) -> list[str]:
    """Return the names of all contexts of a kubeconfig. Raises Unjudged if it cannot be read."""
    from kubernetes import config

    with reading(kubeconfig):
        path = str(kubeconfig) if kubeconfig else None
        contexts: Any = config.list_kube_config_contexts(path)[0]
        return sorted(str(context["name"]) for context in contexts)


def require_context(kubeconfig: Path | None, context: str) -> None:
    """Raise InputError if the kubeconfig has no such context."""
    names = list_contexts(kubeconfig)
    if context in names:
        return
    similar = get_close_matches(context, names, n=1)
    raise InputError(
        "no such context in the kubeconfig",
        got=context,
        allowed=", ".join(names[:10]) or "none: the file has no context",
        fix=f"--context {similar[0]}" if similar else _GET_CREDENTIALS,
    )


@contextmanager
def reading(kubeconfig: Path | None) -> Generator[None]:
    """Raise Unjudged if the kubeconfig cannot be used.

    The client checks little of it: a file of another form ends in whichever error comes first.
    """
    from kubernetes import config
    from yaml import YAMLError

    path = kubeconfig or config.KUBE_CONFIG_DEFAULT_LOCATION
    try:
        yield
    except config.ConfigException as error:
        raise Unjudged(f"no cluster in {path}", got=str(error), fix=_GET_CREDENTIALS) from error
    except (YAMLError, UnicodeDecodeError) as error:
        # Not the error's text: it quotes the file, which holds credentials.
        raise _unusable_kubeconfig(path, "not YAML") from error
    except OSError as error:
        raise _unusable_kubeconfig(path, error.strerror or type(error).__name__) from error
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _unusable_kubeconfig(path, "not of a kubeconfig's form") from error


def _unusable_kubeconfig(path: object, reason: str) -> Unjudged:
    return Unjudged(f"no cluster in {path}", got=reason, fix=_GET_CREDENTIALS)


@contextmanager
def requiring_credentials() -> Generator[Any]:
    """Yield a configuration to fill. Raises Unjudged if a credential plugin failed.

    The client only logs that, and would go on as an anonymous user.
    """
    configuration = make_configuration()
    failures: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR:
            return True
        failures.append(record.getMessage())
        return False

    root = logging.getLogger()
    root.addFilter(keep)
    try:
        yield configuration
    finally:
        root.removeFilter(keep)
    if failures and not configuration.api_key and not configuration.cert_file:
        raise Unjudged(
            "the credential plugin of the kubeconfig failed",
            got=" ".join(failures[-1].split())[:300],
            fix="install it (for GKE: `gcloud components install gke-gcloud-auth-plugin`), then"
            " `gcloud auth login`",
        )


def make_configuration() -> Any:
    """Return a client configuration whose retries end soon, and with the server's own answer.

    By default the transport obeys any Retry-After, three times, and then hides the status.
    """
    from kubernetes import client
    from urllib3.response import BaseHTTPResponse
    from urllib3.util.retry import Retry

    class BoundedRetry(Retry):
        def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
            seconds = super().get_retry_after(response)
            return None if seconds is None else min(seconds, _LONGEST_RETRY_AFTER_S)

    configuration = client.Configuration()
    configuration.retries = BoundedRetry(_RETRIES, raise_on_status=False)
    return configuration
