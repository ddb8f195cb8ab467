"""Reads the types of event lines and the names of metrics from telemetry.toml.

An event is one JSON object a line: `v` (schema version), `t` (Unix seconds, float), `event` (its
type), `job` and, if each index of a Job trains apart, `index` (job_identity.py), `kind`
(training, batch or serving), `process` (unique for each process), and the fields of its type.
"""

import tomllib
from pathlib import Path

EVENT_VERSION = 1

_TABLES = tomllib.loads(Path(__file__).with_name("telemetry.toml").read_text())
EVENTS: dict[str, tuple[str, ...]] = {
    name: tuple(text.split()) for name, text in _TABLES["events"].items()
}
"""Type -> fields that it has in addition to the common ones."""

KIND_TRAINING = "training"
KIND_BATCH = "batch"
KIND_SERVING = "serving"  # for drills only: servers write no event lines
KIND_NODE = "node"  # lines about a machine, which belong to no job

# NVIDIA's exporter on each GPU node: scraped for alerts, and read by the mover.
GPU_EXPORTER = "dcgm-exporter"
GPU_EXPORTER_NAMESPACE = "gpu-metrics"
GPU_EXPORTER_PORT = 9_400
GPU_FIELDS: dict[str, tuple[str, str]] = {
    name: (kind, text) for name, (kind, text) in _TABLES["gpu_fields"].items()
}
"""DCGM_FI_DEV_* -> (type for Prometheus, help)."""

METRIC_PREFIX = "custom.googleapis.com/holdfast"
METRICS: dict[str, str] = _TABLES["metrics"]
"""Name -> help. The exporter serves them to Prometheus with '/' as '_' and the prefix `holdfast_`.
"""
