"""vLLM's rendered Deployments: one budget decides the hold before SIGTERM, the timeout after it,
and the grace.
"""

from typing import Any

import pytest

from holdfast.vocabulary.serving import (
    DRAIN_PATH,
    HOOK_PORT,
    PORT,
    READY_PATH,
    SIDECAR_PORT,
    sidecar_budget,
)
from tests.platforms import load, names
from tests.workloads.manifests.rendered import bodies, named, option

SERVING = [name for name in names() if load(name).serving]
ONE = SERVING[-1]
TIERS = ("vllm-base", "vllm-overflow")


def pod(env: str, name: str) -> dict[str, Any]:
    return named(env, "Deployment", name)["spec"]["template"]["spec"]


@pytest.mark.parametrize("env", SERVING)
@pytest.mark.parametrize("name", TIERS)
def test_hold_and_timeout_fill_the_grace_that_the_pool_grants(env: str, name: str) -> None:
    spec = pod(env, name)
    (vllm,), (sidecar,) = spec["containers"], spec["initContainers"]
    window_s = float(option(sidecar["command"], "--window"))
    hold_s, timeout_s = sidecar_budget(window_s)
    assert spec["terminationGracePeriodSeconds"] == window_s > hold_s + timeout_s
    assert int(option(vllm["command"], "--shutdown-timeout")) == int(timeout_s) > 0
    assert vllm["lifecycle"]["preStop"]["httpGet"] == {"path": DRAIN_PATH, "port": HOOK_PORT}
    assert vllm["readinessProbe"]["httpGet"] == {"path": READY_PATH, "port": SIDECAR_PORT}
    assert option(sidecar["command"], "--health") == f"http://127.0.0.1:{PORT}/health"
    assert sidecar["restartPolicy"] == "Always", (
        "a native sidecar: it outlives the container that it drains"
    )


@pytest.mark.parametrize("env", SERVING)
def test_the_proxy_asks_the_sidecar_for_health_and_may_reach_it(env: str) -> None:
    watch = next(c for c in pod(env, "vllm-proxy")["initContainers"] if c["name"] == "watch")
    assert option(watch["command"], "--health-port") == str(SIDECAR_PORT)
    assert (
        option(watch["command"], "--service") == named(env, "Service", "vllm")["metadata"]["name"]
    )
    servers = named(env, "Service", "vllm")["spec"]["selector"]
    admitted = set()
    for body in bodies(env):
        if (
            body["kind"] == "NetworkPolicy"
            and body["spec"]["podSelector"].get("matchLabels") == servers
        ):
            for rule in body["spec"].get("ingress", ()):
                for port in rule["ports"]:
                    admitted.add(port["port"])
    assert admitted == {PORT, SIDECAR_PORT}
