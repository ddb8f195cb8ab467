"""What a deployed cluster lacks before a first job: operators, webhooks, queues, images, database.

Read-only: a dry-run create is all that is ever sent. Each probe answers whether it is well, what
was found, and the fix.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.clients.api import Api, Object
from holdfast.manifests.render_context import RenderContext
from holdfast.platform import Platform
from holdfast.support.checks import Answer, lacking
from holdfast.support.errors import Unjudged
from holdfast.vocabulary.kubernetes import KUEUE_API, api_path
from workloads.manifests import rendering
from workloads.operators import install
from workloads.operators.catalogue import LABEL_VERSION, OPERATORS, WEBHOOKS
from workloads.operators.settings import MANAGED_KINDS

Ask = Callable[..., Any]
"""gcloud's words and `project` -> its answer; raises Unjudged where it refuses."""
_ADMISSION = "/apis/admissionregistration.k8s.io/v1/{}s"


Probes = tuple[tuple[str, Callable[[Platform], Answer]], ...]


def probes(api: Api, ask: Ask) -> Probes:
    found: tuple[tuple[str, Callable[..., Answer]], ...] = (
        ("operators", _operators),
        ("webhooks", _webhooks),
        ("queues", _queues),
        ("database migrated", _migrated),
    )
    return (
        *((name, partial(probe, api)) for name, probe in found),
        ("images", partial(_images, ask)),
    )


def _operators(api: Api, platform: Platform) -> Answer:
    """Whether those that are pinned are there, each of its version and image, and rolled out."""
    faults = list[str]()
    context = RenderContext(platform)
    for operator in OPERATORS:
        path = f"/apis/apps/v1/namespaces/{operator.namespace}/deployments/{operator.deployment}"
        found = api.find(path)
        fault = install.rolled_out(api, operator)
        version = found["metadata"].get("labels", {}).get(LABEL_VERSION, "another") if found else ""
        image = found["spec"]["template"]["spec"]["containers"][0]["image"] if found else ""
        if found and version != f"v{operator.version}":
            fault = f"{version}, v{operator.version} is pinned"
        elif found and image != context.image(operator.name):
            fault = f"image {image.rpartition('/')[2]}"
        if fault:
            faults.append(f"{operator.name}: {fault}")
    listed = ", ".join(f"{operator.name} v{operator.version}" for operator in OPERATORS)
    return lacking(faults, listed, f"make operators ENV={platform.name}")


def _webhooks(api: Api, platform: Platform) -> Answer:
    """They answer, and none of Kueue's is fail-closed on kinds of others."""
    faults = [
        f"{operator.name}: {fault}"
        for operator in OPERATORS
        if (fault := install.webhook_fault(api, operator))
    ]
    for kind in WEBHOOKS:
        for body in api.items(_ADMISSION.format(kind.lower())):
            if body["metadata"]["name"].startswith("kueue-"):
                faults += [
                    f"{each['name']} intercepts {', '.join(bare)}"
                    for each in body["webhooks"]
                    if (bare := _bare(each))
                ]
    return lacking(
        faults, "they answer", f"make operators ENV={platform.name}; port 10250 of its nodes"
    )


def _bare(webhook: Object) -> list[str]:
    """Resources of others that it intercepts in namespaces of others."""
    scoped = webhook.get("namespaceSelector", {}).get("matchLabels")
    own = {
        group
        for rule in webhook["rules"]
        for group in rule["apiGroups"]
        if group.endswith("kueue.x-k8s.io")
    }
    named = sorted({resource for rule in webhook["rules"] for resource in rule["resources"]})
    if scoped or own:
        return []
    return [name for name in named if name not in MANAGED_KINDS] or named


def _queues(api: Api, platform: Platform) -> Answer:
    """Every ClusterQueue of the environment admits: Kueue says so, and why not."""
    wanted = []
    for b in rendering.platform(RenderContext(platform)):
        if b["kind"] == "ClusterQueue":
            wanted.append(b["metadata"]["name"])
    there = {}
    for item in api.items(f"{api_path(KUEUE_API)}/clusterqueues"):
        there[item["metadata"]["name"]] = item
    wrong = [f"{name} is not there" for name in wanted if name not in there]
    wrong += [
        f"{name}: {why}" for name in wanted if name in there and (why := _inactive(there[name]))
    ]
    return lacking(wrong, f"{len(wanted)} admit", f"make apply ENV={platform.name}")


def _inactive(queue: Object) -> str:
    active = next(
        (c for c in queue.get("status", {}).get("conditions", ()) if c["type"] == "Active"), None
    )
    if active is None:
        return "Kueue has not judged it"
    if active["status"] == "True":
        return ""
    return active.get("message", active.get("reason", "inactive"))


def _migrated(api: Api, platform: Platform) -> Answer:
    """The migration of this checkout has completed; it logs in by Workload Identity, so that has
    worked, too.
    """
    wanted = [body for body in rendering.platform(RenderContext(platform)) if body["kind"] == "Job"]
    if not wanted:
        return True, "a database of your own", ""
    (job,) = wanted
    namespace = job["metadata"]["namespace"]
    name = job["metadata"]["name"]
    found = api.find(api.path_of(job))
    ended = next(
        (c for c in (found or {}).get("status", {}).get("conditions", ()) if c["status"] == "True"),
        None,
    )
    if found is None:
        return False, f"no Job {name}", f"make apply ENV={platform.name}"
    if ended is None or ended["type"] not in ("Complete", "Failed"):
        return False, f"Job {name} has not ended", f"holdfast explain {name}"
    fix = f"kubectl logs -n {namespace} job/{name}; delete it, then make apply ENV={platform.name}"
    return ended["type"] == "Complete", f"Job {name}: {ended.get('message') or ended['type']}", fix


def _images(ask: Ask, platform: Platform) -> Answer:
    """Each digest that manifests name is in the registry."""
    context = RenderContext(platform)
    rendered = rendering.images(context, "".join(rendering.texts(platform).values()))
    needed = sorted({*platform.images, *rendered, *(operator.name for operator in OPERATORS)})
    absent = [f"{role} has no digest" for role in needed if role not in platform.images]
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
            absent.append(f"{role} is not in the registry")
    fix = f"make images operators-pin ENV={platform.name}, then make render"
    return lacking(absent, f"{len(needed)} in {platform.registry}", fix)
