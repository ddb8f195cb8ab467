"""Deployments on machines that come and go: workers that never end, servers, the proxy before them."""

from kubernetes import client

from holdfast.contract.kubernetes import LABEL_NAME
from holdfast.manifests.pods import Work, template
from holdfast.manifests.render_context import Body, RenderContext, meta, plain


def deployment(context: RenderContext, namespace: str, work: Work, replicas: int | None = None) -> Body:
    """Named as its work. `replicas`: None where an autoscaler has them."""
    return plain(
        client.V1Deployment(
            api_version="apps/v1",
            kind="Deployment",
            metadata=meta(work.name, namespace),
            spec=client.V1DeploymentSpec(
                replicas=replicas,
                selector=client.V1LabelSelector(match_labels={LABEL_NAME: work.name}),
                revision_history_limit=3,
                progress_deadline_seconds=4 * 3600,  # Spot may be sold out for hours
                strategy=client.V1DeploymentStrategy(
                    type="RollingUpdate",
                    # A machine more may not be there to be had; one replica less is what a lost machine costs too.
                    rolling_update=client.V1RollingUpdateDeployment(max_surge=1, max_unavailable=1),
                ),
                template=template(context, work),
            ),
        )
    )
