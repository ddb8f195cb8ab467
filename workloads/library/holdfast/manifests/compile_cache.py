"""Gives an engine a folder for what it compiles, which later replicas get from a bucket.

A container fills the folder before the engine starts, and another one stores it once the engine is
ready. The second has its own limits: the drain next to it must answer its probes in time.
"""

# Why it is so: infra/decisions/0201.

import json
from dataclasses import replace
from hashlib import sha256

from kubernetes import client

from holdfast.manifests.pods import PodSettings
from holdfast.manifests.render_context import RenderContext
from holdfast.manifests.serving_proxy import sidecar
from holdfast.vocabulary import serving

FETCH_S = 120
"""Most seconds for which the engine waits for its caches."""
_PROGRAM = ("python", "-m", "holdfast.inference.compile_cache")
_FORMAT = 1
_MEMORY = "256Mi"
_KEY_LENGTH = 32


def add_compile_cache(
    context: RenderContext,
    work: PodSettings,
    url: str,
    health_url: str,
) -> PodSettings:
    """Adds the caches of a bucket to the pod of an engine.

    `url` is a folder that only the service writes: what lies there runs in the engine.
    """
    place = ["--url", url, "--key", find_key(work)]
    place += ["--folder", serving.COMPILE_CACHE]
    env = dict(work.env)
    for variable, folder in serving.COMPILER_FOLDERS.items():
        env[variable] = f"{serving.COMPILE_CACHE}/{folder}"
    return replace(
        work,
        env=env,
        sidecars=[
            _fetcher(context, place),
            *work.sidecars,
            _keeper(context, place, health_url),
        ],
        post_start=_start_hook(),
    )


def find_key(work: PodSettings) -> str:
    """Returns the name of the archive: a digest of all that may change what is compiled.

    The compilers' own keys decide what they use. An archive that does not fit costs its transfer.
    """
    text = json.dumps(
        {
            "format": _FORMAT,
            "image": work.image,
            "gpu": work.pool.accelerator if work.pool else "",
            "gpus": work.size.gpus,
            "command": work.command,
            "env": work.env,
        },
        sort_keys=True,
    )
    return sha256(text.encode()).hexdigest()[:_KEY_LENGTH]


def _fetcher(context: RenderContext, place: list[str]) -> client.V1Container:
    command = [*_PROGRAM, "fetch", *place, "--within", str(FETCH_S)]
    container = sidecar(
        context,
        serving.CACHE_FETCHER,
        command,
        [],
        cpu="1",  # of the engine's, which are idle now
        memory=_MEMORY,
    )
    container.restart_policy = None  # it ends before the others start
    return container


def _keeper(context: RenderContext, place: list[str], health_url: str) -> client.V1Container:
    command = [*_PROGRAM, "keep", *place, "--health", health_url]
    return sidecar(
        context,
        "keep-compiled",
        command,
        [],
        memory=_MEMORY,
    )


def _start_hook() -> client.V1LifecycleHandler:
    """Drops the caches when an engine starts again that was never ready with them.

    Otherwise files that make it fail would do so at every start. The remains of an interrupted
    fetch go too. The kubelet ends an engine whose hook fails, so this one never does.
    """
    caches: list[str] = []
    for folder in serving.COMPILER_FOLDERS.values():
        caches.append(f"{serving.COMPILE_CACHE}/{folder}")
    untried = f"rmdir {serving.COMPILE_CACHE}/{serving.CACHE_UNTRIED}"
    proven = f"test -e {serving.COMPILE_CACHE}/{serving.CACHE_PROVEN}"
    drop = f"rm -rf {' '.join(caches)}"
    clear = f"rm -rf {serving.COMPILE_CACHE}/{serving.CACHE_INCOMING}"
    script = f"{clear}; {untried} || {proven} || {drop} || true"
    action = client.V1ExecAction(command=["sh", "-c", script])
    return client.V1LifecycleHandler(_exec=action)
