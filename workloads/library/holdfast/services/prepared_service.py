"""Prepares the service of a file: checks, places, renders and prices it."""

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

from holdfast.clients.api import Object
from holdfast.cost.prices import Table
from holdfast.jobs.file.formats import parse_bucket
from holdfast.jobs.plan.pricing import Purchase, PurchasePlan, make_purchase
from holdfast.jobs.render.manifests import judge, text
from holdfast.jobs.submit import external_checks
from holdfast.manifests.render_context import Body, RenderContext
from holdfast.manifests.serving import Tier
from holdfast.manifests.serving_proxy import ENVOY, SERVER
from holdfast.manifests.serving_vllm import VLLM
from holdfast.platform import Platform
from holdfast.services.file import file_text
from holdfast.services.file.service_file import Engine, Reach, ServiceSpec
from holdfast.services.plan import compile_cache, placement, weights
from holdfast.services.plan.placement import Placed
from holdfast.services.render import manifests
from holdfast.support.errors import InputError, Stopped
from holdfast.vocabulary.serving import TIER_BASE


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    service: ServiceSpec
    """The service, with its image by digest."""
    platform: Platform
    placed: Placed
    bodies: list[Body]
    notes: list[str]
    """The arithmetic of its sizes and of its model, and what was not checked."""


def read_service(
    document: Any, source: str, platform: Platform, model_copy: Path | None = None
) -> Prepared:
    """Prepare the service of a file that `submit` was given."""
    service = file_text.parse(document, source)
    return prepare(service, platform, model_copy, Path(source).parent)


def render(service: ServiceSpec, platform: Platform) -> str:
    """Return the manifest of a service, without a look at its image, its model and its grants."""
    _require_environment(service, platform)
    _require_namespaces(service, platform)
    context = RenderContext(platform)
    default_image = VLLM if service.engine is Engine.VLLM else SERVER
    image = service.image or default_image
    if image in (VLLM, SERVER):
        image = context.image(image)
    named = replace(service, image=image)
    objects = manifests.bodies(named, context, placement.place(service, platform))
    return text(platform.name, objects)


def prepare(
    service: ServiceSpec,
    platform: Platform,
    model_copy: Path | None = None,
    folder: Path | None = None,
) -> Prepared:
    """Check, place and render a service; nothing is written or sent.

    folder: that of the service file, for the settings of the linter. Raises InputError, and Stopped
    for a service of another environment.
    """
    _require_environment(service, platform)
    _require_namespaces(service, platform)
    placed = placement.place(service, platform)
    notes = [service.promise]
    notes += compile_cache.check(service, platform, _find_account(service, platform))
    if service.model:
        notes += weights.check(service, platform.project, model_copy)
        notes += _describe_grant(service, platform)
    if placed.reach is Reach.EXTERNAL:
        notes += _describe_callers(service, platform)
    context = RenderContext(platform)
    context.require_digests([SERVER, ENVOY])
    pinned = replace(service, image=_resolve_image(service, context))
    objects = manifests.bodies(pinned, context, placed)
    judge(f"{service.name}.yaml", text(platform.name, objects), platform, folder)
    return Prepared(
        service=pinned,
        platform=platform,
        placed=placed,
        bodies=objects,
        notes=notes,
    )


def _require_environment(service: ServiceSpec, platform: Platform) -> None:
    if service.environment != platform.name:
        raise Stopped(
            f"{service.name} is a service of another environment",
            got=service.environment,
            allowed=str(platform),
            fix="choose the cluster of its environment, or change `environment` in its file",
        )


def _require_namespaces(service: ServiceSpec, platform: Platform) -> None:
    """Raise InputError for a caller that is not a namespace of jobs or services."""
    namespaces = {*platform.service_namespaces, *platform.job_namespaces}
    for caller in service.caller_namespaces:
        if caller not in namespaces:
            raise InputError(
                "callers",
                got=caller,
                allowed=", ".join(sorted(namespaces)),
                fix="name a namespace of jobs or services, or cluster for all of them",
            )


def _resolve_image(service: ServiceSpec, context: RenderContext) -> str:
    if service.engine is Engine.VLLM and service.image in ("", VLLM):
        context.require_digests([VLLM])
        return context.image(VLLM)
    return external_checks.resolve(service.image or SERVER, context)


def _find_account(service: ServiceSpec, platform: Platform) -> str:
    """Return the Google account of the servers."""
    return platform.accounts[platform.role_in(service.home, SERVER)]


def _describe_grant(service: ServiceSpec, platform: Platform) -> list[str]:
    """Return how the servers may read a bucket that is not of the environment."""
    bucket, _ = parse_bucket("model", service.model)
    if bucket in platform.buckets.values():
        return []
    account = _find_account(service, platform)
    return [
        f"model: the servers may read gs://{bucket} after gcloud storage buckets"
        f" add-iam-policy-binding gs://{bucket} --member=serviceAccount:{account}"
        " --role=roles/storage.objectViewer"
    ]


def _describe_callers(service: ServiceSpec, platform: Platform) -> list[str]:
    """Return how those who may call from the internet get the right; no manifest can give it."""
    options = (
        f"--resource-type=backend-services --region={platform.region}"
        f" --role=roles/iap.httpsResourceAccessor --project={platform.project}"
    )
    lines: list[str] = []
    for member in service.members:
        lines.append(
            f"members: {member} may call after gcloud iap web add-iam-policy-binding"
            f" --member={member} {options}"
        )
    return lines


def plan(prepared: Prepared, prices: Table, cap: float | None = None) -> PurchasePlan:
    """Price a service: what is always there, and what is added under load.

    cap: the most dollars an hour for all of its replicas together.
    """
    if cap is not None and not 0 < cap < inf:
        raise InputError(
            "--max-usd-per-hour",
            got=cap,
            allowed="more than 0",
            fix="leave it out for no cap",
        )
    purchases: list[Purchase] = []
    for tier in prepared.placed.tiers:
        body = _find_deployment(prepared, tier)
        for part, pods in _list_parts(prepared.service, tier):
            purchase = make_purchase(
                body, pods, body["spec"]["template"]["spec"], prepared.platform, prices
            )
            purchases.append(replace(purchase, job=f"{purchase.job}{part}"))
    purchase_plan = PurchasePlan(
        environment=prepared.platform.name,
        documents=prepared.bodies,
        purchases=purchases,
        refusals=[],
        price_date=prices.fetched_at.isoformat(),
    )
    usd_per_hour = purchase_plan.usd_per_hour
    if cap is not None and usd_per_hour is None:
        purchase_plan.refusals.append("a cap was given and the price is not known")
    elif cap is not None and usd_per_hour is not None and usd_per_hour > cap:
        purchase_plan.refusals.append(f"${usd_per_hour:.2f} an hour is over the cap of ${cap:.2f}")
    return purchase_plan


def _find_deployment(prepared: Prepared, tier: Tier) -> Object:
    name = f"{prepared.service.name}-{tier.name}"
    return next(
        body
        for body in prepared.bodies
        if (body["kind"], body["metadata"]["name"]) == ("Deployment", name)
    )


UNDER_LOAD = " under load"


def _list_parts(service: ServiceSpec, tier: Tier) -> list[tuple[str, int]]:
    """Return the parts of a tier that are priced apart, with their replicas."""
    standby = service.standby if tier.name == TIER_BASE else 0
    parts = [
        ("", tier.min_replicas - standby),
        (" standby", standby),
        (UNDER_LOAD, tier.max_replicas - tier.min_replicas),
    ]
    return [(part, pods) for part, pods in parts if pods]


def describe_price(service: ServiceSpec, purchase_plan: PurchasePlan) -> str:
    """Return what the service costs while idle and under full load, in one sentence."""
    idle = 0.0
    for purchase in purchase_plan.purchases:
        if purchase.usd_per_hour is None:
            return "the price is not known: the table has none for these machines"
        if not purchase.job.endswith(UNDER_LOAD):
            idle += purchase.usd_per_hour
    beginning = f"always ${idle:.2f} an hour"
    if service.may_sleep:
        beginning = f"$0.00 an hour while it sleeps, ${idle:.2f} awake"
    return f"{beginning}, under full load ${purchase_plan.usd_per_hour or 0:.2f}"
