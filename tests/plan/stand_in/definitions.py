"""Google's published definitions of its APIs: their calls, and the fields of bodies.

They are the discovery documents inside the google-api-python-client package
(requirements/discovery.in). Each is one JSON file with every method's path and every message's
fields.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.plan import isolated

Json = dict[str, Any]
# APIs whose version is not v1. An API is named as the segment after the world in an endpoint.
DOCUMENTS = {
    "logging": "logging.v2",
    "monitoring": "monitoring.v3",
    "monitoring-dashboards": "monitoring.v1",
    "sqladmin": "sqladmin.v1beta4",
}
# Every method takes these parameters, besides its own.
COMMON = {"alt", "prettyPrint", "fields", "key", "quotaUser", "userProject", "$.xgafv"}
# The provider sends these fields in every call of their kind. Google accepts them, but the
# published definitions do not have them.
UNPUBLISHED = {"NetworkRoutingConfig.deleteBgpAlwaysCompareMed", "RouterNat.initialNatIps"}

# Descriptions have most ranges (a duration is in seconds), and say which fields never change.
RANGE = re.compile(
    r"\b(?i:value) (?:must|should) be (?:an integer )?between (\d+) and (\d+)"
    r"|Range: \[(\d+), (\d+)\]"
)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
IMMUTABLE = re.compile(r"^(?:Optional\. |Required\. )?Immutable\b")


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request that Google's definitions know."""

    api: str
    id: str
    """The name of the method, as `container.projects.locations.clusters.create`."""
    verb: str
    path: str
    """The path below the API's base, as `projects/p/locations/l/clusters`."""
    query: Mapping[str, Sequence[str]]
    body: Json
    answers: str
    """The message of the answer, as `Operation`."""
    takes: str = ""
    """The message of the body, as `Topic`."""
    problems: tuple[str, ...] = field(default=())

    @property
    def action(self) -> str:
        return self.id.rpartition(".")[2]

    @property
    def target(self) -> str:
        """The resource of a policy."""
        return re.sub(r"(:[gs]etIamPolicy|/[gs]etIamPolicy|/iam)$", "", self.path)

    @property
    def new_path(self) -> str:
        """Path of the resource that the call creates: its name is in the body, in a parameter,
        or in the path itself.
        """
        if self.verb == "PUT":
            return self.path
        by_parameter = [values[0] for name, values in self.query.items() if name.endswith("Id")]
        named = str(self.body.get("name", "")).rpartition("/")[2]
        return f"{self.path}/{(by_parameter or [named])[0]}"


@cache
def document(api: str) -> Json:
    home = isolated.site_packages(isolated.environment("discovery"))
    documents = home / "googleapiclient" / "discovery_cache" / "documents"
    name = DOCUMENTS.get(api, f"{api}.v1")
    return json.loads((documents / f"{name}.json").read_text())


def find(
    api: str,
    verb: str,
    path: str,
    query: Mapping[str, Sequence[str]],
    body: Json,
    decoded: Callable[[str], str],
) -> Call | None:
    """Return the call with the problems of its body and parameters; None if no method has this verb
    and path.
    """
    query = {_camel(name): values for name, values in query.items()}
    for method, pattern in _methods(api):
        if method["httpMethod"] == verb and pattern.fullmatch(path):
            return Call(
                api=api,
                id=method["id"],
                verb=verb,
                path=decoded(path.removeprefix(_base(api, method))),
                query=query,
                body=body,
                answers=method.get("response", {}).get("$ref", ""),
                takes=method.get("request", {}).get("$ref", ""),
                problems=tuple(_problems(api, method, query, body)),
            )
    return None


def _problems(
    api: str,
    method: Json,
    query: Mapping[str, Sequence[str]],
    body: Json,
) -> Iterator[str]:
    parameters = set(COMMON)
    for name, parameter in method.get("parameters", {}).items():
        if parameter["location"] == "query":
            parameters.add(name)
    for name in query:
        if name not in parameters:
            yield f"unknown parameter {name}"
    request = method.get("request", {}).get("$ref")
    if request:
        yield from misfits(api, request, body, "")
    elif body:
        yield f"{method['id']} takes no body"


def misfits(api: str, message: str, value: Any, parent: str) -> Iterator[str]:
    """Yield the parts of a value that its message does not know: a field, an enum's value, a
    type.
    """
    schema = document(api)["schemas"][message]
    if not isinstance(value, dict):
        yield f"{parent or message}: {value!r} is no {message}"
    elif "properties" not in schema:
        return  # as Struct, which holds anything
    else:
        for name, inner in value.items():
            path = f"{parent}.{name}" if parent else name
            property_schema = schema["properties"].get(name)
            if property_schema is None and f"{message}.{name}" not in UNPUBLISHED:
                yield f"{path}: no field of {message}"
            elif property_schema is not None:
                yield from _fits(api, property_schema, inner, path)


def _fits(api: str, schema: Json, value: Any, path: str) -> Iterator[str]:
    if value is None:
        return
    if "$ref" in schema:
        yield from misfits(api, schema["$ref"], value, path)
    elif schema["type"] == "array":
        items = value if isinstance(value, list) else [value]
        if not isinstance(value, list):
            yield f"{path}: {value!r} is no list"
        for i, item in enumerate(items):
            yield from _fits(api, schema["items"], item, f"{path}[{i}]")
    elif schema["type"] == "object":
        for key, item in value.items() if "additionalProperties" in schema else ():
            yield from _fits(api, schema["additionalProperties"], item, f"{path}.{key}")
    elif problem := _scalar(schema, value):
        yield f"{path}: {problem}"


def _scalar(schema: Json, value: Any) -> str:
    kind = schema["type"]
    form = schema.get("format", "")
    if kind == "any":
        return ""
    if form in ("int64", "uint64") and isinstance(value, int) and not isinstance(value, bool):
        return ""  # proto3's JSON reads both spellings
    python = {
        "string": str,
        "boolean": bool,
        "integer": int,
        "number": (int, float),
    }[kind]
    if not isinstance(value, python) or (kind == "integer" and isinstance(value, bool)):
        return f"{value!r} is no {kind}"
    if form in ("int64", "uint64") and not re.fullmatch(r"-?\d+", str(value)):
        return f"{value!r} is no {form}"
    # An empty text is what Go's clients send for what is not set.
    if value and "pattern" in schema and not re.fullmatch(schema["pattern"], str(value)):
        return f"{value!r} does not match {schema['pattern']}"
    if problem := _judge_range(schema, value):
        return problem
    if value and "enum" in schema and value not in schema["enum"]:
        return f"{value!r} is none of {', '.join(schema['enum'])}"
    # Taken today, and refused by the API when its time is over.
    if (
        value
        and any(schema.get("enumDeprecated", ()))
        and schema["enumDeprecated"][schema["enum"].index(value)]
    ):
        return f"{value!r} is deprecated"
    return ""


def _judge_range(schema: Json, value: Any) -> str:
    match = RANGE.search(schema.get("description", ""))
    number = NUMBER.fullmatch(str(value).removesuffix("s"))
    # Zero is what Go's clients send for a number that is not set.
    if match is None or number is None or not float(number[0]):
        return ""
    low, high = (int(bound) for bound in match.groups() if bound)
    if low <= float(number[0]) <= high:
        return ""
    return f"{value!r} is not between {low} and {high}"


def list_immutable(call: Call) -> list[str]:
    """Return the fields of the call's body that never change, by their descriptions."""
    message = document(call.api)["schemas"].get(call.takes, {})
    return [
        name
        for name, schema in message.get("properties", {}).items()
        if IMMUTABLE.search(schema.get("description", ""))
    ]


def _camel(name: str) -> str:
    """Return a parameter's name in camel case, since requests use both spellings."""
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


@cache
def _methods(api: str) -> list[tuple[Json, re.Pattern[str]]]:
    return [(m, re.compile(_regex(api, m))) for m in _walk(document(api))]


def _base(api: str, method: Json) -> str:
    """`compute/v1/`, `v1/`: what precedes the resource's own path."""
    path = document(api)["servicePath"] + method["path"]
    match = re.match(r"(?:[a-z]+/)?v\d\w*/", path)
    return match.group() if match else ""


def _regex(api: str, method: Json) -> str:
    path = document(api)["servicePath"] + method.get("flatPath", method["path"])
    parts = re.split(r"\{\+?\w+\}", path)
    return "[^/:]+".join(re.escape(part) for part in parts)


def _walk(node: Json) -> Iterator[Json]:
    yield from node.get("methods", {}).values()
    for inner in node.get("resources", {}).values():
        yield from _walk(inner)
