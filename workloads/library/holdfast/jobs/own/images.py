"""Image names: a digest is taken as it is, a role is looked up, a tag is resolved by its registry."""

import re
from dataclasses import dataclass

from holdfast.contract.errors import InputError
from holdfast.contract.roles import ROLES
from holdfast.jobs.own import registry
from holdfast.manifests.render_context import RenderContext

_BY_DIGEST = re.compile(r"[a-z0-9][a-z0-9._:/-]{0,254}@sha256:[0-9a-f]{64}")
_BY_TAG = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9._/-]*(:[0-9]{1,5}/[a-z0-9._/-]+)?)(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    image: str
    warning: str = ""


def resolve(image: str, context: RenderContext) -> Resolved:
    """The image by digest; InputError where there is none, nobody answers for it, or the cluster would refuse it."""
    found = _by_digest(image, context)
    if not context.platform.admits(found.image):
        raise InputError(
            "the environment's image policy refuses this image", got=found.image,
            allowed=", ".join(context.platform.security.image_patterns or ()),
            fix=f"push it to {context.platform.registry}, or add its repository to security.image_patterns",
        )  # fmt: skip
    return found


def _by_digest(image: str, context: RenderContext) -> Resolved:
    if _BY_DIGEST.fullmatch(image):
        return Resolved(image=image)
    if image in ROLES:
        return Resolved(image=_of_role(image, context))
    match = _BY_TAG.fullmatch(image)
    if match is None:
        raise InputError(
            "image is no name", got=image, allowed="NAME@sha256:64 hex digits, NAME:TAG, or a role", fix=registry.FIX
        )
    name, tag = match["name"], match["tag"] or "latest"
    digest = registry.digest(name, tag)
    warning = f"{image} is a tag, which moves: taken as {digest}, its digest now"
    return Resolved(image=f"{name}@{digest}", warning=warning)


def require(context: RenderContext, *roles: str) -> None:
    """InputError where an image of the environment was not pushed yet."""
    context.require_digests(roles, fix=f"make images ENV={context.platform.name}")


def _of_role(role: str, context: RenderContext) -> str:
    require(context, role)
    return context.image(role)
