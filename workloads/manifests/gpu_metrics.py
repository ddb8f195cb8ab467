"""NVIDIA's DCGM exporter on every GPU node: GKE's managed one does not collect the fields that
alerts read.

Modelled on Google's example of a self-managed exporter: GoogleCloudPlatform/prometheus-engine,
examples/nvidia-dcgm.
"""

from collections.abc import Iterator
from hashlib import sha256

from ruamel.yaml.scalarstring import LiteralScalarString

from holdfast.manifests.pods import USER, listening
from holdfast.manifests.policies import policy, scraped
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta
from holdfast.vocabulary.kubernetes import LABEL_NAME, MONITORING_API, PRIORITY_SPOT
from holdfast.vocabulary.pools import LABEL_ACCELERATOR
from holdfast.vocabulary.telemetry import GPU_EXPORTER as NAME
from holdfast.vocabulary.telemetry import GPU_EXPORTER_NAMESPACE as NAMESPACE
from holdfast.vocabulary.telemetry import GPU_EXPORTER_PORT as PORT
from holdfast.vocabulary.telemetry import GPU_FIELDS
from workloads.manifests.tenancy import pod_security

INTERVAL_S = 30
# Where GKE installs the driver on COS, and where its device plugin mounts it into other pods.
DRIVER_ON_NODE = "/home/kubernetes/bin/nvidia"
DRIVER = "/usr/local/nvidia"
CONFIG_DIR = "/etc/dcgm-exporter"
CONFIG_FILE = "fields.csv"
# Its size is small against what jobs leave of a machine; autoscaler and scheduler subtract it from
# each GPU node.
SIZE = {
    "cpu": "100m",
    "memory": "512Mi",
    "ephemeral-storage": "64Mi",
}


def objects(context: RenderContext) -> Iterator[Body]:
    if not context.platform.security.gpu_exporter:
        return
    own = {LABEL_NAME: NAME}
    # A pod sees the devices of GPUs that it does not request only if it is privileged, and its
    # namespace has no other.
    yield manifest("v1", "Namespace", meta(NAMESPACE, labels=pod_security("privileged")))
    yield manifest(
        "v1", "ServiceAccount", meta(NAME, NAMESPACE), automountServiceAccountToken=False
    )
    yield policy("default-deny", NAMESPACE, ["Ingress", "Egress"], None, None)
    yield scraped(NAMESPACE, PORT, pods=own)
    fields = "".join(
        f"DCGM_FI_DEV_{name}, {kind}, {what}\n" for name, (kind, what) in GPU_FIELDS.items()
    )
    yield manifest(
        "v1", "ConfigMap", meta(NAME, NAMESPACE), data={CONFIG_FILE: LiteralScalarString(fields)}
    )
    # Pods do not restart by themselves when the ConfigMap changes.
    changed = {"holdfast.dev/fields": sha256(fields.encode()).hexdigest()[:8]}
    template = {
        "metadata": {"labels": own, "annotations": changed},
        "spec": _pod(context),
    }
    spec = {
        "selector": {"matchLabels": own},
        "template": template,
    }
    yield manifest("apps/v1", "DaemonSet", meta(NAME, NAMESPACE), spec=spec)
    endpoint = {"port": "metrics", "interval": f"{INTERVAL_S}s"}
    scraping = {
        "selector": {"matchLabels": own},
        "endpoints": [endpoint],
    }
    yield manifest(MONITORING_API, "PodMonitoring", meta(NAME, NAMESPACE), spec=scraping)


def _pod(context: RenderContext) -> Body:
    present = {"key": LABEL_ACCELERATOR, "operator": "Exists"}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [present]}]}
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "automountServiceAccountToken": False,
        "containers": [_container(context)],
        "enableServiceLinks": False,
        # The lowest: it never pushes a job out.
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
    node = {
        "name": "NODE_NAME",
        "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}},
    }
    return {
        "name": "main",
        "image": context.image(NAME),
        "imagePullPolicy": "Always",
        # Not the image's entrypoint, which writes to its root file system. It exits until the
        # driver is installed.
        "command": ["/usr/bin/dcgm-exporter"],
        "env": [*({"name": name, "value": value} for name, value in settings.items()), node],
        "ports": [{"name": "metrics", "containerPort": PORT}],
        "resources": {"requests": SIZE, "limits": SIZE},
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": PORT},
            "periodSeconds": 15,
            "failureThreshold": 4,
        },
        "livenessProbe": listening(PORT, period_s=30),
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
