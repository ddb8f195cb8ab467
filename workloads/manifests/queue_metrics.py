"""Kueue's own metrics for managed Prometheus: what is collected, and by whose token.

Kueue serves them over TLS with a certificate of each process' own, to accounts that may `get
/metrics`.
"""

from collections.abc import Iterator

from kubernetes import client

from holdfast.manifests.rbac import API, within
from holdfast.manifests.render_context import Body, RenderContext, manifest, meta
from holdfast.vocabulary.kubernetes import KUEUE_METRICS, MONITORING_API, NAMESPACE_KUEUE

NAME = "kueue-metrics"
# Both as upstream's manifest names them: on the pods, and the role that it ships for readers.
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
    # Filled by the cluster. A collector takes a token from a Secret only; this one can do nothing
    # but read metrics.
    about = meta(NAME, NAMESPACE_KUEUE, annotations={"kubernetes.io/service-account.name": NAME})
    yield manifest("v1", "Secret", about, type="kubernetes.io/service-account-token")
    rules = [
        client.V1PolicyRule(
            api_groups=[""],
            resources=["secrets"],
            resource_names=[NAME],
            verbs=["get", "list", "watch"],
        )
    ]
    yield from within(
        NAME,
        rules,
        NAMESPACE_KUEUE,
        account=COLLECTOR,
        account_namespace=COLLECTOR_NAMESPACE,
    )
    yield _scraping()


def _scraping() -> Body:
    kept = f"({'|'.join(KUEUE_METRICS)})(_bucket|_sum|_count)?"
    endpoint = {
        "port": "metrics",
        "interval": "30s",
        "scheme": "https",
        # No authority signs it: each replica makes its certificate when it starts.
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
                "regex": kept,
            }
        ],
    }
    spec = {
        "selector": {"matchLabels": PODS},
        "endpoints": [endpoint],
    }
    return manifest(MONITORING_API, "PodMonitoring", meta(NAME, NAMESPACE_KUEUE), spec=spec)
