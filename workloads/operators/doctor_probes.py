"""Checks that a deployed cluster is ready for a first job, for the command `doctor`.

Probes look at operators, webhooks, queues, images and the database. They are read-only: a dry-run
create is all that is ever sent. Each answers whether all is well, the facts, and the fix.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from holdfast.clients.api import Api, Object
from holdfast.manifests.render_context import RenderContext
from holdfast.platform import Platform
from holdfast.support.checks import Answer, make_answer
from holdfast.support.errors import Unjudged
from holdfast.vocabulary.kubernetes import KUEUE_API, api_path
from workloads.manifests import rendering
from workloads.operators import install
from workloads.operators.catalogue import LABEL_VERSION, OPERATORS, WEBHOOKS, Body
from workloads.operators.settings import MANAGED_KINDS

Ask = Callable[..., Any]
"""Runs gcloud with words and `project`; raises Unjudged where it refuses."""
_ADMISSION = "/apis/admissionregistration.k8s.io/v1/{}s"

Probes = tuple[tuple[str, Callable[[Platform], Answer]], ...]


def probes(api: Api, ask: Ask) -> Probes:
    return (
        ("operators", partial(_check_operators, api)),
        ("webhooks", partial(_check_webhooks, api)),
        ("queues", partial(_check_queues, api)),
        ("scalers", partial(_check_scalers, api)),
        ("database migrated", partial(_check_migration, api)),
        ("images", partial(_check_images, ask)),
    )


def _check_operators(api: Api, platform: Platform) -> Answer:
    """Checks that pinned operators are rolled out, each with its version and image."""
    faults: list[str] = []
    context = RenderContext(platform)
    for operator in OPERATORS:
        fault = install.find_rollout_fault(api, operator)
        deployment = install.find_deployment(api, operator)
        if deployment:
            labels = deployment["metadata"].get("labels", {})
            version = labels.get(LABEL_VERSION, "another")
            image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
            if version != f"v{operator.version}":
                fault = f"{version}, v{operator.version} is pinned"
            elif image != context.image(operator.name):
                fault = f"image {image.rpartition('/')[2]}"
        if fault:
            faults.append(f"{operator.name}: {fault}")
    operators = ", ".join(f"{operator.name} v{operator.version}" for operator in OPERATORS)
    return make_answer(faults, operators, f"make operators ENV={platform.name}")


def _check_webhooks(api: Api, platform: Platform) -> Answer:
    """Checks that webhooks answer, and that none of Kueue's fails closed on objects of others."""
    faults: list[str] = []
    for operator in OPERATORS:
        fault = install.find_webhook_fault(api, operator)
        if fault:
            faults.append(f"{operator.name}: {fault}")
    for kind in WEBHOOKS:
        for body in api.items(_ADMISSION.format(kind.lower())):
            if body["metadata"]["name"].startswith("kueue-"):
                faults.extend(_find_wide_webhooks(body))
    fix = f"make operators ENV={platform.name}; port 10250 of its nodes"
    return make_answer(faults, "they answer", fix)


def _find_wide_webhooks(body: Object) -> Iterator[str]:
    for webhook in body["webhooks"]:
        resources = _list_foreign_resources(webhook)
        if resources:
            yield f"{webhook['name']} intercepts {', '.join(resources)}"


def _list_foreign_resources(webhook: Object) -> list[str]:
    """Lists the resources that a webhook intercepts in namespaces without a label of the platform.

    Empty for a webhook on Kueue's own kinds.
    """
    if webhook.get("namespaceSelector", {}).get("matchLabels"):
        return []
    resources: set[str] = set()
    for rule in webhook["rules"]:
        if any(group.endswith("kueue.x-k8s.io") for group in rule["apiGroups"]):
            return []
        resources.update(rule["resources"])
    return sorted(resources.difference(MANAGED_KINDS) or resources)


def _check_queues(api: Api, platform: Platform) -> Answer:
    """Checks that every ClusterQueue of the environment admits jobs, by Kueue's own condition."""
    queues: dict[str, Object] = {}
    for queue in api.items(f"{api_path(KUEUE_API)}/clusterqueues"):
        queues[queue["metadata"]["name"]] = queue
    missing: list[str] = []
    inactive: list[str] = []
    bodies = _render_objects("ClusterQueue", platform)
    for body in bodies:
        name = body["metadata"]["name"]
        if name not in queues:
            missing.append(f"{name} is not there")
            continue
        reason = _find_inactivity(queues[name])
        if reason:
            inactive.append(f"{name}: {reason}")
    return make_answer(
        missing + inactive, f"{len(bodies)} admit", f"make apply ENV={platform.name}"
    )


def _render_objects(kind: str, platform: Platform) -> list[Body]:
    bodies = rendering.platform(RenderContext(platform))
    return [body for body in bodies if body["kind"] == kind]


def _find_inactivity(queue: Object) -> str:
    """Returns the reason why a queue admits nothing; empty where it is active."""
    for condition in queue.get("status", {}).get("conditions", ()):
        if condition["type"] == "Active":
            if condition["status"] == "True":
                return ""
            return condition.get("message", condition.get("reason", "inactive"))
    return "Kueue has not judged it"


def _check_scalers(api: Api, platform: Platform) -> Answer:
    """Checks that each autoscaler of the platform's namespaces gets its metrics."""
    faults: list[str] = []
    scalers = 0
    for namespace in sorted({*platform.namespaces.values(), *platform.job_namespaces}):
        folder = f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
        for scaler in api.items(folder):
            scalers += 1
            reason = _find_scaling_fault(scaler)
            if reason:
                faults.append(f"{namespace}/{scaler['metadata']['name']}: {reason}")
    fix = (
        "GKE 1.35.1 or newer with the performance profile of autoscalers; then `kubectl get"
        " autoscalingmetrics -A`, and submit a service again that lacks its own"
    )
    return make_answer(faults, f"{scalers} get their metrics", fix)


def _find_scaling_fault(scaler: Object) -> str:
    """Returns why an autoscaler has no metric; empty where it has, or was not judged yet."""
    for condition in scaler.get("status", {}).get("conditions", ()):
        is_inactive = (condition["type"], condition["status"]) == ("ScalingActive", "False")
        # A Deployment that was set to 0 is not scaled on purpose.
        if is_inactive and condition.get("reason") != "ScalingDisabled":
            return condition.get("message") or condition.get("reason", "not active")
    return ""


def _check_migration(api: Api, platform: Platform) -> Answer:
    """Checks that the migration of this checkout has completed.

    It logs in by Workload Identity, so this proves that the identity works too.
    """
    jobs = _render_objects("Job", platform)
    if not jobs:
        return True, "a database of your own", ""
    (rendered_job,) = jobs
    namespace = rendered_job["metadata"]["namespace"]
    name = rendered_job["metadata"]["name"]
    job = api.find(api.path_of(rendered_job))
    if job is None:
        return False, f"no Job {name}", f"make apply ENV={platform.name}"
    condition = _find_end(job)
    if condition is None:
        return False, f"Job {name} has not ended", f"holdfast explain {name}"
    is_complete = condition["type"] == "Complete"
    outcome = condition.get("message") or condition["type"]
    fix = f"kubectl logs -n {namespace} job/{name}; delete it, then make apply ENV={platform.name}"
    return is_complete, f"Job {name}: {outcome}", fix


def _find_end(job: Object) -> Object | None:
    # Kubernetes 1.31 and newer write SuccessCriteriaMet or FailureTarget before, and keep it.
    for condition in job.get("status", {}).get("conditions", ()):
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return condition
    return None


def _check_images(ask: Ask, platform: Platform) -> Answer:
    """Checks that the registry has each digest that manifests name."""
    context = RenderContext(platform)
    text = "".join(rendering.texts(platform).values())
    roles = {*platform.images, *rendering.images(context, text)}
    roles.update(operator.name for operator in OPERATORS)
    faults: list[str] = []
    for role in sorted(roles):
        if role not in platform.images:
            faults.append(f"{role} has no digest")
    for role in sorted(platform.images):
        try:
            ask(
                "artifacts",
                "docker",
                "images",
                "describe",
                context.image(role),
                project=platform.project,
            )
        except Unjudged as error:
            if "not found" not in str(error).lower() and "NOT_FOUND" not in str(error):
                raise
            faults.append(f"{role} is not in the registry")
    fix = f"make images operators-pin ENV={platform.name}, then make render"
    return make_answer(faults, f"{len(roles)} in {platform.registry}", fix)
