"""Builds NVIDIA's DCGM exporter on every GPU node.

GKE's managed one does not collect the fields that alerts read. Modeled on Google's example of a
self-managed exporter: GoogleCloudPlatform/prometheus-engine, examples/nvidia-dcgm.
"""

from collections.abc import Iterator
from hashlib import sha256

from ruamel.yaml.scalarstring import LiteralScalarString

from holdfast.manifests.pods import USER, tcp_probe
from holdfast.manifests.policies import policy, scrape
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta
from holdfast.vocabulary.kubernetes import LABEL_NAME, MONITORING_API, PRIORITY_SPOT
from holdfast.vocabulary.pools import LABEL_ACCELERATOR
from holdfast.vocabulary.telemetry import GPU_EXPORTER as NAME
from holdfast.vocabulary.telemetry import GPU_EXPORTER_NAMESPACE as NAMESPACE
from holdfast.vocabulary.telemetry import GPU_EXPORTER_PORT as PORT
from holdfast.vocabulary.telemetry import GPU_FIELDS
from workloads.manifests.tenancy import pod_security

INTERVAL_S = 30
# Folder where GKE installs the driver on COS, and where its device plugin mounts it in other pods.
DRIVER_ON_NODE = "/home/kubernetes/bin/nvidia"
DRIVER = "/usr/local/nvidia"
CONFIG_DIR = "/etc/dcgm-exporter"
CONFIG_FILE = "fields.csv"
# Small against what jobs leave of a machine; autoscaler and scheduler subtract it from each GPU
# node.
SIZE = {
    "cpu": "100m",
    "memory": "512Mi",
    "ephemeral-storage": "64Mi",
}


def objects(context: RenderContext) -> Iterator[Body]:
    if not context.platform.security.gpu_exporter:
        return
    labels = {LABEL_NAME: NAME}
    # A pod sees the devices of GPUs that it does not request only if it is privileged, so it has a
    # namespace to itself.
    yield manifest("v1", "Namespace", meta(NAMESPACE, labels=pod_security("privileged")))
    yield manifest(
        "v1", "ServiceAccount", meta(NAME, NAMESPACE), automountServiceAccountToken=False
    )
    yield policy("default-deny", NAMESPACE, ["Ingress", "Egress"], None, None)
    yield scrape(NAMESPACE, PORT, pods=labels)
    fields = ""
    for name, (kind, description) in GPU_FIELDS.items():
        fields += f"DCGM_FI_DEV_{name}, {kind}, {description}\n"
    config = {CONFIG_FILE: LiteralScalarString(fields)}
    yield manifest("v1", "ConfigMap", meta(NAME, NAMESPACE), data=config)
    # Pods do not restart by themselves when the ConfigMap changes; with its digest they do.
    annotations = {"holdfast.dev/fields": sha256(fields.encode()).hexdigest()[:8]}
    template = {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": _pod(context),
    }
    spec = {
        "selector": {"matchLabels": labels},
        "template": template,
    }
    yield manifest("apps/v1", "DaemonSet", meta(NAME, NAMESPACE), spec=spec)
    endpoint = {"port": "metrics", "interval": f"{INTERVAL_S}s"}
    monitoring = {
        "selector": {"matchLabels": labels},
        "endpoints": [endpoint],
    }
    yield manifest(MONITORING_API, "PodMonitoring", meta(NAME, NAMESPACE), spec=monitoring)


def _pod(context: RenderContext) -> Body:
    has_gpu = {"key": LABEL_ACCELERATOR, "operator": "Exists"}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [has_gpu]}]}
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "automountServiceAccountToken": False,
        "containers": [_container(context)],
        "enableServiceLinks": False,
        # The lowest priority: it never pushes a job out.
        "priorityClassName": PRIORITY_SPOT,
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": 5,
        # Each taint of a GPU node, those of a fork and of ComputeClasses included.
        "tolerations": [{"operator": "Exists"}],
        "volumes": [
            {
                "name": "driver",
                "hostPath": {"path": DRIVER_ON_NODE, "type": "Directory"},
            },
            {
                "name": "fields",
                "configMap": {"name": NAME},
            },
            {
                "name": "tmp",
                "emptyDir": {"sizeLimit": "16Mi"},
            },
            {
                "name": "log",
                "emptyDir": {"sizeLimit": "16Mi"},
            },
        ],
    }


def _container(context: RenderContext) -> Body:
    settings = {
        "DCGM_EXPORTER_COLLECTORS": f"{CONFIG_DIR}/{CONFIG_FILE}",
        "DCGM_EXPORTER_INTERVAL": str(INTERVAL_S * 1_000),
        "DCGM_EXPORTER_LISTEN": f":{PORT}",
        "LD_LIBRARY_PATH": f"{DRIVER}/lib64",
    }
    env: list[Body] = [{"name": name, "value": value} for name, value in settings.items()]
    node_name = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    env.append({"name": "NODE_NAME", "valueFrom": node_name})
    return {
        "name": "main",
        "image": context.image(NAME),
        "imagePullPolicy": "Always",
        # Not the image's entrypoint, which writes to its root file system. It exits until the
        # driver is installed.
        "command": ["/usr/bin/dcgm-exporter"],
        "env": env,
        "ports": [{"name": "metrics", "containerPort": PORT}],
        "resources": {"requests": SIZE, "limits": SIZE},
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": PORT},
            "periodSeconds": 15,
            "failureThreshold": 4,
        },
        "livenessProbe": tcp_probe(PORT, period_s=30),
        # Without root it has no capabilities; NVIDIA needs them for profiling fields only.
        "securityContext": {
            "privileged": True,
            "readOnlyRootFilesystem": True,
            "runAsGroup": USER,
            "runAsNonRoot": True,
            "runAsUser": USER,
        },
        "volumeMounts": [
            {
                "name": "driver",
                "mountPath": DRIVER,
                "readOnly": True,
            },
            {
                "name": "fields",
                "mountPath": CONFIG_DIR,
                "readOnly": True,
            },
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "log", "mountPath": "/var/log"},
        ],
    }
