"""Tests of vLLM's rendered Deployments.

One budget decides the hold before SIGTERM, the timeout after it, and the grace period.
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
from tests.workloads.manifests.rendered import find_object, list_kinds, option

SERVING = [name for name in names() if load(name).serving]
ONE = SERVING[-1]
TIERS = ("vllm-base", "vllm-overflow")


def pod(env: str, name: str) -> dict[str, Any]:
    return find_object(env, "Deployment", name)["spec"]["template"]["spec"]


@pytest.mark.parametrize("env", SERVING)
@pytest.mark.parametrize("name", TIERS)
def test_hold_and_timeout_fit_the_grace_period(env: str, name: str) -> None:
    spec = pod(env, name)
    (vllm,) = spec["containers"]
    (sidecar,) = spec["initContainers"]
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
def test_proxy_reaches_the_sidecar_health_port(env: str) -> None:
    watch = next(c for c in pod(env, "vllm-proxy")["initContainers"] if c["name"] == "watch")
    assert option(watch["command"], "--health-port") == str(SIDECAR_PORT)
    assert (
        option(watch["command"], "--service")
        == find_object(env, "Service", "vllm")["metadata"]["name"]
    )
    servers = find_object(env, "Service", "vllm")["spec"]["selector"]
    ports: set[int] = set()
    for body in list_kinds(env, "NetworkPolicy"):
        if body["spec"]["podSelector"].get("matchLabels") == servers:
            for rule in body["spec"].get("ingress", ()):
                ports.update(port["port"] for port in rule["ports"])
    assert ports == {PORT, SIDECAR_PORT}
