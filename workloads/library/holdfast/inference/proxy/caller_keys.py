"""The API keys of callers: from the files of a mounted Secret to a file that Envoy reads.

A file's name is the caller's name, and its content is the caller's key. A suffix after a dot is not
part of the caller's name, so that a caller can have two keys while its clients change from one to
the other. When the Secret changes, Envoy takes the new keys without a restart.
"""

# Decision: infra/decisions/0158.

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.inference.proxy.endpoints import write
from holdfast.runtime import logs
from holdfast.vocabulary.serving import CALLER_HEADER, KEYS_FILTER, KEYS_TYPE

LEAST_CHARS = 16
_INTERVAL_S = 5.0


def read_keys(folder: Path) -> dict[str, str]:
    """Returns the key of each file.

    The kubelet keeps the versions of a Secret in files that begin with two dots.
    """
    keys: dict[str, str] = {}
    for file in sorted(folder.glob("[!.]*")):
        keys[file.name] = file.read_text(encoding="utf-8", errors="replace").strip()
    return keys


def choose_safe(keys: Mapping[str, str]) -> dict[str, str]:
    """Leaves out keys that are too short or that another file has too, with a warning."""
    safe_keys: dict[str, str] = {}
    for name, key in keys.items():
        if len(key) < LEAST_CHARS:
            logs.warning("keys", f"{name}: a key has at least {LEAST_CHARS} characters")
        elif key in safe_keys.values():
            logs.warning("keys", f"{name}: another name has the same key")
        else:
            safe_keys[name] = key
    return safe_keys


def find_caller(name: str) -> str:
    return name.partition(".")[0]


def make_filter(keys: Mapping[str, str]) -> dict[str, Any]:
    """Makes the discovery response with the filter of Envoy; without keys it refuses every call."""
    credentials = [{"key": key, "client": find_caller(name)} for name, key in keys.items()]
    config = {
        "@type": KEYS_TYPE,
        "credentials": credentials,
        "key_sources": [{"header": "authorization"}, {"header": "x-api-key"}],
        # Servers learn the caller, and never the key.
        "forwarding": {"header": CALLER_HEADER, "hide_credentials": True},
    }
    resource = {
        "@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
        "name": KEYS_FILTER,
        "typed_config": config,
    }
    return {"resources": [resource]}


class KeyFollower(threading.Thread):
    """Writes the file whenever the Secret has changed. `update` does it once."""

    def __init__(self, folder: Path, out: Path) -> None:
        super().__init__(name="keys", daemon=True)
        self._folder = folder
        self._out = out
        self._keys: dict[str, str] | None = None

    def run(self) -> None:
        while True:
            time.sleep(_INTERVAL_S)
            self.update()

    def update(self) -> None:
        try:
            keys = read_keys(self._folder)
            if keys == self._keys:
                return
            safe_keys = choose_safe(keys)
            write(self._out, make_filter(safe_keys))
        except OSError as error:  # the kubelet replaces the files just now, or the volume is full
            logs.warning("keys", f"the keys cannot be taken over: {error.strerror}")
            return
        self._keys = keys
        callers = {find_caller(name) for name in safe_keys}
        logs.info("keys", f"{len(callers)} callers", count=len(callers))
