"""Builds the collection of Kueue's metrics by managed Prometheus.

Kueue serves them over TLS, with a new certificate for each process, to accounts that may `get
/metrics`.
"""

from collections.abc import Iterator

from kubernetes import client

from holdfast.manifests.rbac import API, bind_role
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta
from holdfast.vocabulary.kubernetes import KUEUE_METRICS, MONITORING_API, NAMESPACE_KUEUE

NAME = "kueue-metrics"
# Labels of the pods, and the role for readers, as upstream's manifest names them.
PODS = {"app.kubernetes.io/name": "kueue", "control-plane": "controller-manager"}
READER = "kueue-metrics-reader"
# GKE's collectors, whose operator copies the token from the Secret.
COLLECTOR = "collector"
COLLECTOR_NAMESPACE = "gmp-system"


def objects(_: RenderContext) -> Iterator[Body]:
    yield manifest(
        "v1", "ServiceAccount", meta(NAME, NAMESPACE_KUEUE), automountServiceAccountToken=False
    )
    role = {
        "apiGroup": API,
        "kind": "ClusterRole",
        "name": READER,
    }
    subjects = [
        {
            "kind": "ServiceAccount",
            "name": NAME,
            "namespace": NAMESPACE_KUEUE,
        }
    ]
    yield manifest(
        f"{API}/v1",
        "ClusterRoleBinding",
        meta(NAME),
        roleRef=role,
        subjects=subjects,
    )
    # The cluster fills it. A collector takes a token from a Secret only; this one can only read
    # metrics.
    annotations = {"kubernetes.io/service-account.name": NAME}
    metadata = meta(NAME, NAMESPACE_KUEUE, annotations=annotations)
    yield manifest("v1", "Secret", metadata, type="kubernetes.io/service-account-token")
    rules = [
        client.V1PolicyRule(
            api_groups=[""],
            resources=["secrets"],
            resource_names=[NAME],
            verbs=["get", "list", "watch"],
        )
    ]
    yield from bind_role(
        NAME,
        rules,
        NAMESPACE_KUEUE,
        account=COLLECTOR,
        account_namespace=COLLECTOR_NAMESPACE,
    )
    yield _monitor()


def _monitor() -> Body:
    metric_names = f"({'|'.join(KUEUE_METRICS)})(_bucket|_sum|_count)?"
    endpoint = {
        "port": "metrics",
        "interval": "30s",
        "scheme": "https",
        # Each replica signs its own certificate when it starts.
        "tls": {"insecureSkipVerify": True},
        "authorization": {
            "type": "Bearer",
            "credentials": {"secret": {"name": NAME, "key": "token"}},
        },
        # Managed Prometheus is paid by the sample, and Kueue has some sixty metrics.
        "metricRelabeling": [
            {
                "action": "keep",
                "sourceLabels": ["__name__"],
                "regex": metric_names,
            }
        ],
    }
    spec = {
        "selector": {"matchLabels": PODS},
        "endpoints": [endpoint],
    }
    return manifest(MONITORING_API, "PodMonitoring", meta(NAME, NAMESPACE_KUEUE), spec=spec)
