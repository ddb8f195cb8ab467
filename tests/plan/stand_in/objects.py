"""Asks the stand-in, as an account, for each thing that one can do with an object of a bucket."""

from urllib.parse import quote, unquote

from tests.plan.stand_in import definitions
from tests.plan.stand_in.definitions import Json
from tests.plan.stand_in.world import Refusal, World

OWNER = ""
METHODS = {"create": "POST", "get": "GET", "update": "PATCH", "delete": "DELETE"}


def list_allowed(world: World, token: str, bucket: str, name: str) -> set[str]:
    """Return which of METHODS the caller with this token may do with the object, which exists
    before each.
    """
    allowed = set()
    for action, verb in METHODS.items():
        _ask(world, OWNER, "POST", bucket, name)
        if is_allowed(world, token, verb, bucket, name):
            allowed.add(action)
    # A bucket with objects cannot be destroyed.
    if "delete" not in allowed:
        _ask(world, OWNER, "DELETE", bucket, name)
    return allowed


def is_allowed(world: World, token: str, verb: str, bucket: str, name: str = "") -> bool:
    """Tell whether a call about the object is answered; without a name, about the listing."""
    try:
        _ask(world, token, verb, bucket, name)
    except Refusal as refusal:
        if refusal.code != 403:
            raise
        return False
    return True


def _ask(world: World, token: str, verb: str, bucket: str, name: str) -> Json:
    path = f"b/{bucket}/o"
    query = {"name": [name]} if verb == "POST" else {}
    if name and verb != "POST":
        path += f"/{quote(name, safe='')}"
    call = definitions.find("storage", verb, f"storage/v1/{path}", query, {}, unquote)
    return world.answer(verb, "storage", path, call, token)
