"""Pins of the engine and its provider, of the operators in the cluster, and of GPU drivers.

The first two change together with the plan snapshots, and a provider mirror must hold the same
version.
"""

GOOGLE_PROVIDER_SOURCE = "hashicorp/google"
# 7.39.0 is the first release with kubelet_config.shutdown_grace_period_seconds.
GOOGLE_PROVIDER_VERSION = "7.39.0"
# Minor releases of GKE 1.x that a control plane may start from: the first with flex-start pools,
# and the newest that Google offered in November 2026. Raise the second once RAPID has a newer one.
GKE_MINORS = (33, 37)
# Driver branch behind each setting of a GPU pool, on COS of GKE 1.31 and newer.
GPU_DRIVERS = {"DEFAULT": 535, "LATEST": 580}
# NVIDIA's table of minor-version compatibility: the least branch for a CUDA major.
MIN_DRIVER = {12: 525, 13: 580}
CUDA_MAJOR = 13  # of the torch wheel in requirements/train.txt, which a test compares
GPU_DRIVER = "LATEST"
MIN_TERRAFORM = (1, 9)  # `terraform show -json` and preconditions as the plan runner reads them
MIN_OPENTOFU = (1, 8)
# Versions of the operators: `python -m workloads.operators.vendor` renders their manifests again,
# `make operators` applies them.
JOBSET_VERSION = "0.12.0"
KUEUE_VERSION = "0.19.2"
# The proxy before online servers: the minor release whose configuration the tests run.
ENVOY_VERSION = "1.40.0"
# DCGM and its exporter. 4.8.3 and newer rename the label Hostname, which the runbook reads.
DCGM_EXPORTER_VERSION = "4.5.3-4.8.2"
# Any release with --shutdown-timeout: without it every request is cut at SIGTERM.
VLLM_VERSION = "0.33.0"
