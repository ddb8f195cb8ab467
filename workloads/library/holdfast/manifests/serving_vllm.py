"""Makes pods of vLLM, which lose no request when their machine goes.

vLLM refuses requests after SIGTERM, so it must leave its Service before. The sidecar has its
readiness and its preStop hook; `--shutdown-timeout` is what the window leaves for requests in
flight. Both come from one budget.
"""

from collections.abc import Sequence
from dataclasses import replace

from kubernetes import client

from holdfast.manifests.compile_cache import add_compile_cache
from holdfast.manifests.deployments import probes
from holdfast.manifests.pods import PodSettings, Probes, Size
from holdfast.manifests.render_context import RenderContext
from holdfast.manifests.serving import Tier, server
from holdfast.manifests.serving_proxy import DRAIN_HOOK, FirstHop, drain_sidecar
from holdfast.vocabulary import serving

VLLM = "vllm"  # the role in digests.json: a copy of the project's own image
HEALTH_PATH = "/health"
MAX_LOAD_S = 1800
# The scaler takes the larger outcome of running and waiting requests: few may wait before another
# replica is worth its price.
WAITING_TARGET = 4


def engine(
    context: RenderContext,
    name: str,
    tier: Tier,
    hop: FirstHop,
    *,
    size: Size,
    options: Sequence[str],
    image: str = "",
    compile_cache: str = "",
) -> PodSettings:
    """Makes a pod of vLLM; `options` name its model and what differs from vLLM's defaults.

    `compile_cache` is the folder of a bucket for what it compiles; empty: each start compiles.
    """
    health = f"http://127.0.0.1:{serving.PORT}{HEALTH_PATH}"
    work = PodSettings(
        **server(name, tier, hop, serving.ENGINE_RUNNING),
        image=image or context.image(VLLM),
        command=_command(options, hop.window_s),
        # Compiled kernels and streamed weights pass through /tmp.
        size=replace(size, disk="12Gi", scratch="8Gi"),
        # Neither service is reachable from the namespace.
        env={"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        probes=_probes(),
        pre_stop=DRAIN_HOOK,
        sidecars=[drain_sidecar(context, health, hop.window_s)],
    )
    if not compile_cache:
        return work
    return add_compile_cache(context, work, compile_cache, health)


def _command(options: Sequence[str], window_s: int) -> list[str]:
    _, timeout_s = serving.sidecar_budget(window_s)
    words = ["vllm", "serve", *options]
    words += ["--host", "0.0.0.0", "--port", str(serving.PORT)]
    return [*words, "--shutdown-timeout", str(int(timeout_s))]


def _probes() -> Probes:
    """Probes the sidecar for readiness, else vLLM itself, which does not answer while it loads."""
    health = client.V1HTTPGetAction(path=HEALTH_PATH, port=serving.PORT)
    return Probes(
        readiness=probes(serving.SIDECAR_PORT).readiness,
        liveness=client.V1Probe(
            http_get=health,
            period_seconds=10,
            timeout_seconds=5,
            failure_threshold=6,
        ),
        startup=client.V1Probe(
            http_get=health,
            period_seconds=5,
            failure_threshold=MAX_LOAD_S // 5,
        ),
    )
