"""Builds vLLM like our own server: a base on demand and an overflow on Spot, without lost requests.

vLLM refuses requests after SIGTERM, so it must leave its Service before. The sidecar has its
readiness and its preStop hook; `--shutdown-timeout` is what the window leaves for requests in
flight. Both come from one budget.
"""

from collections.abc import Iterator
from dataclasses import replace

from kubernetes import client

from holdfast.manifests.deployments import overflow_pool, probes
from holdfast.manifests.pods import PodSettings, Probes
from holdfast.manifests.render_context import Body, RenderContext
from holdfast.manifests.serving import policies, server, tiers
from holdfast.manifests.serving_proxy import DRAIN_HOOK, FirstHop, drain_sidecar, proxies
from holdfast.manifests.training import gpu_size
from holdfast.vocabulary import serving
from holdfast.vocabulary.pools import Pool

VLLM = "vllm"  # the role in digests.json: a copy of the project's own image
HEALTH_PATH = "/health"
HOP = FirstHop(
    name="vllm-proxy",
    servers=VLLM,
    clients="vllm-serving",
    rights="vllm-endpoints",
    health_port=serving.SIDECAR_PORT,
)
MAX_LOAD_S = 1800
# vLLM's metrics. The scaler takes the larger outcome: few requests may wait before another replica
# is worth its price.
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
WAITING_TARGET = 4


def samples(context: RenderContext) -> Iterator[Body]:
    settings = context.platform.serving
    if settings is None:
        return
    window_s = overflow_pool(context).window.pod_s

    def work(name: str, tier: str, pool: Pool) -> PodSettings:
        return server(
            context,
            name,
            tier,
            pool,
            VLLM,
            image=context.image(VLLM),
            command=_command(context, window_s),
            # Compiled kernels and streamed weights pass through /tmp.
            size=replace(gpu_size(pool), disk="12Gi", scratch="8Gi"),
            # Neither service is reachable from the namespace.
            env={"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
            probes=_probes(),
            pre_stop=DRAIN_HOOK,
            sidecars=[
                drain_sidecar(context, f"http://127.0.0.1:{serving.PORT}{HEALTH_PATH}", window_s)
            ],
        )

    targets = {RUNNING: settings.inflight_target, WAITING: WAITING_TARGET}
    yield from tiers(context, settings, VLLM, work, targets)
    yield from proxies(context, HOP)
    yield from policies(HOP, "vllm-")


def _command(context: RenderContext, window_s: int) -> list[str]:
    """Writes the command, in which a fork names its model: a Hugging Face folder of the bucket."""
    _, timeout_s = serving.sidecar_budget(window_s)
    words = [
        "vllm",
        "serve",
        f"{context.checkpoints}/vllm/change-me",
        "--load-format",
        "runai_streamer",
    ]
    words += [
        "--served-model-name",
        "model",
        "--host",
        "0.0.0.0",
        "--port",
        str(serving.PORT),
    ]
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
