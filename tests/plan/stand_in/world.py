"""A Google Cloud project for these stacks: created resources exist, and invalid calls are refused.

The common calls of all APIs (create, get, list, patch, delete, policies) are here; `services` has
their differences.
"""

import copy
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.infra import conditions
from tests.plan.stand_in import callers, defaults, definitions, strict
from tests.plan.stand_in.definitions import Call, Json

CREATES = ("insert", "create")
CHANGES = ("patch", "update", "updateMask")
# Another value after each change; a request that sends an old one is refused.
VERSIONS = frozenset({"etag", "fingerprint", "labelFingerprint"})
# A project may lack these service agents until somebody has them created.
AGENTS = {
    "artifactregistry": "gcp-sa-artifactregistry",
    "compute": "compute-system",
    "container": "container-engine-robot",
    "logging": "gcp-sa-logging",
    "pubsub": "gcp-sa-pubsub",
    "sqladmin": "gcp-sa-cloud-sql",
    "storage": "gs-project-accounts",
}
# A grant on a key is not in force at once: Google names two minutes, and sometimes seven.
GRANT_DELAY_S = 400.0
USES_KEY = "cryptoKeyEncrypterDecrypter"


class Refusal(Exception):
    """An error in the form of Google's APIs."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str = "",
        status: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        listed = [
            {
                "message": message,
                "reason": reason,
                "domain": "global",
            }
        ]
        self.body = {
            "error": {
                "code": code,
                "message": message,
                "status": status,
                "errors": listed,
            }
        }


@dataclass(kw_only=True)
class World:
    """One project. A fresh one has neither APIs nor service agents."""

    project: str
    number: str
    now_s: float = 0.0
    """The time of a clock that moves only when a test lets time pass."""
    shuffled: bool = True
    """Answers have lists that are sets to the API in another order than they were sent."""
    enabled: set[str] = field(default_factory=lambda: {"serviceusage", "cloudresourcemanager"})
    callers: dict[str, str] = field(default_factory=dict)
    """Access token -> member whose roles are asked. Any other token is that of an owner."""
    used: dict[str, set[str]] = field(default_factory=dict)
    """Access token -> permissions that its calls needed."""
    agents: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    resources: dict[str, Json] = field(default_factory=dict)
    policies: dict[str, Json] = field(default_factory=dict)
    granted_s: dict[tuple[str, str], float] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    lock: Any = field(default_factory=threading.RLock)

    def run(self, command: str) -> None:
        """Run a gcloud command of bootstrap. APIs stay off, so that Terraform must enable them in
        the right order.
        """
        service = re.search(r"services identity create --service=(\w+)\.googleapis\.com", command)
        if service or "storage service-agent" in command:
            self.make_agent(service[1] if service else "storage")

    def make_agent(self, service: str) -> str:
        """Create the agent of a service, and return its address."""
        agent = f"service-{self.number}@{AGENTS[service]}.iam.gserviceaccount.com"
        self.agents.add(agent)
        return agent

    def let_pass(self, seconds: float) -> None:
        with self.lock:
            self.now_s += seconds

    def answer(
        self,
        verb: str,
        api: str,
        path: str,
        call: Call | None,
        token: str = "",
    ) -> Json:
        from tests.plan.stand_in import services

        with self.lock:
            if call is None:
                raise Refusal(404, f"no method of {api} is {verb} /{path}")
            self.calls.append(call.id)
            self._require_enabled(api)
            self._require_permission(call, token)
            if call.problems:
                raise Refusal(
                    400,
                    f"{call.id}: {'; '.join(call.problems)}",
                    status="INVALID_ARGUMENT",
                )
            special = services.SPECIAL.get(call.id)
            response = special(self, call) if special else self._usual(call)
            return copy.deepcopy(response)

    def _require_enabled(self, api: str) -> None:
        service = "monitoring" if api.startswith("monitoring") else api
        if service not in self.enabled:
            text = (
                f"{service}.googleapis.com has not been used in project {self.number} before or it"
                " is disabled."
            )
            raise Refusal(
                403,
                text,
                reason="accessNotConfigured",
                status="PERMISSION_DENIED",
            )

    def _require_permission(self, call: Call, token: str) -> None:
        member = self.callers.get(token)
        permission = callers.find_permission(call.id)
        targets = callers.list_targets(call, self.project)
        attributes = callers.describe(call)
        if call.action == "setIamPolicy":
            roles = {role for role, _ in self._list_changed_grants(call)}
            attributes = replace(attributes, modified_roles=roles)
        if member and not callers.holds(self.policies, targets, member, permission, attributes):
            raise Refusal(
                403,
                f"Permission '{permission}' denied on resource '{call.target}' (or it may not"
                f" exist) for {member}.",
                reason="forbidden",
                status="PERMISSION_DENIED",
            )
        self.used.setdefault(token, set()).add(permission)

    def _usual(self, call: Call) -> Json:
        if call.id.endswith(("operations.get", "operations.wait")):
            return self.operation(call, {})
        if call.action == "getIamPolicy":
            return self.policies.setdefault(call.target, {"version": 1, "etag": "BwX0="})
        if call.action == "setIamPolicy":
            return self._set_policy(call)
        if call.action in CREATES:
            return self.create(call, call.new_path, call.body)
        if call.action == "list":
            return self._list(call)
        if call.action == "get":
            return self.copy_resource(self.existing(call.path))
        if call.action in CHANGES:
            return self._change(call)
        if call.action == "delete":
            return self.delete(call)
        raise Refusal(501, f"the stand-in does not know {call.id}")

    def _change(self, call: Call) -> Json:
        resource = self.existing(call.path)
        self.check(call, call.body)
        after, problems = strict.change(call, resource)
        if problems:
            raise Refusal(
                400,
                "; ".join(problems),
                reason="invalid",
                status="INVALID_ARGUMENT",
            )
        defaults.complete(call, after)
        for name in VERSIONS.intersection(resource):
            if call.body.get(name, resource[name]) != resource[name]:
                raise Refusal(412, f"{name} does not match: the resource was changed since")
            after[name] = f"{len(self.calls):012}"
        resource.clear()
        resource |= after
        return self.operation(call, resource)

    def existing(self, path: str) -> Json:
        if path not in self.resources:
            raise Refusal(
                404,
                f"The resource '{path}' was not found",
                reason="notFound",
                status="NOT_FOUND",
            )
        return self.resources[path]

    def create(self, call: Call, path: str, body: Json) -> Json:
        """Create the resource under `path`, and return the answer."""
        from tests.plan.stand_in import services

        if path in self.resources:
            raise Refusal(
                409,
                f"The resource '{path}' already exists",
                reason="alreadyExists",
                status="ALREADY_EXISTS",
            )
        self.check(call, body)
        resource = copy.deepcopy(body)
        services.complete(self, call, path, resource)
        self.resources[path] = resource
        return self.operation(call, resource)

    def check(self, call: Call, body: Json) -> None:
        """Require that references exist, and that the service may use the key that it is given."""
        for name, text in _texts(body):
            self._check_reference(text)
            if "/cryptoKeys/" in text:
                # GKE hands disks to Compute, which encrypts them; its own agent encrypts what etcd
                # holds.
                self._check_key("compute" if name == "bootDiskKmsKey" else call.api, text)

    def _check_reference(self, text: str) -> None:
        """Require that networks, ranges, topics and accounts of this project exist."""
        path = text.removeprefix("https://www.googleapis.com/compute/v1/")
        named = (
            rf"projects/{self.project}/(global/(?!regions)|regions/[^/]+/|topics/)[^/]+(/[^/]+)?"
        )
        if re.fullmatch(named, path) and path not in self.resources:
            raise Refusal(
                400,
                f"The referenced resource '{path}' cannot be found",
                reason="invalid",
            )
        account = re.fullmatch(rf"[^@/:\s]+@{self.project}\.iam\.gserviceaccount\.com", text)
        if account and f"projects/{self.project}/serviceAccounts/{text}" not in self.resources:
            raise Refusal(400, f"Service account {text} does not exist.", status="INVALID_ARGUMENT")

    def _check_key(self, api: str, text: str) -> None:
        key = re.sub(r"/cryptoKeyVersions/.*", "", text)
        agent = f"serviceAccount:service-{self.number}@{AGENTS[api]}.iam.gserviceaccount.com"
        since = self.granted_s.get((key, agent))
        if key not in self.keys or since is None or self.now_s - since < GRANT_DELAY_S:
            text = (
                f"Permission denied on Cloud KMS key. Please ensure that {agent} has been"
                f" authorized to use {key}."
            )
            raise Refusal(
                403,
                text,
                reason="forbidden",
                status="PERMISSION_DENIED",
            )

    def _set_policy(self, call: Call) -> Json:
        policy = call.body.get("policy", call.body)
        target = call.target
        now = _grants(policy)
        etag = self.policies.get(target, {}).get("etag")
        if policy.get("etag") and etag and policy["etag"] != etag:
            text = "There were concurrent policy changes. Please retry the whole read-modify-write."
            raise Refusal(409, text, reason="conflict", status="ABORTED")
        self._check_conditions(call, policy)
        before = _grants(self.policies.get(target, {}))
        for role, member in now - before:
            self._check_member(member)
            if role.endswith(USES_KEY):
                self.granted_s[target, member] = self.now_s
        for role, member in before - now:
            if role.endswith(USES_KEY):
                self.granted_s.pop((target, member), None)
        self.policies[target] = {
            "version": 1,
            **policy,
            "etag": f"BwX{len(self.calls)}=",
        }
        return self.policies[target]

    def _list_changed_grants(self, call: Call) -> set[tuple[str, str]]:
        policy = call.body.get("policy", call.body)
        return _grants(policy) ^ _grants(self.policies.get(call.target, {}))

    def _check_conditions(self, call: Call, policy: Json) -> None:
        """Require of conditions what Google does: the version of the policy, an expression that can
        be read, and buckets without access lists of objects.
        """
        for binding in policy.get("bindings") or ():
            condition = binding.get("condition")
            if not condition:
                continue
            if policy.get("version") != 3:
                raise Refusal(
                    400, "Conditional bindings need policy version 3.", status="INVALID_ARGUMENT"
                )
            try:
                conditions.holds(condition["expression"], conditions.Attributes(name=""))
            except ValueError as error:
                raise Refusal(
                    400, f"The condition is invalid: {error}", status="INVALID_ARGUMENT"
                ) from error
            bucket = self.resources.get(call.target, {}).get("iamConfiguration", {})
            is_uniform = bucket.get("uniformBucketLevelAccess", {}).get("enabled")
            if call.api == "storage" and not is_uniform:
                raise Refusal(400, "Conditions need uniform bucket-level access.", reason="invalid")

    def _check_member(self, member: str) -> None:
        kind, _, name = member.partition(":")
        agent = re.fullmatch(r"service-\d+@[-a-z]+\.iam\.gserviceaccount\.com", name)
        if kind == "serviceAccount" and agent and name not in self.agents:
            raise Refusal(400, f"Service account {name} does not exist.", status="INVALID_ARGUMENT")
        if kind == "serviceAccount" and not agent and "[" not in name:
            self._check_reference(name)

    def _list(self, call: Call) -> Json:
        schema = definitions.document(call.api)["schemas"][call.answers]["properties"]
        items = [self.copy_resource(resource) for _, resource in self.below(call.path)]
        for name, field_schema in schema.items():
            if field_schema.get("type") == "array" and "$ref" in field_schema["items"]:
                return {name: items}
        raise Refusal(501, f"the stand-in does not know the items of {call.answers}")

    def below(self, path: str) -> list[tuple[str, Json]]:
        pattern = re.compile(rf"{re.escape(path)}/[^/]+")
        return [item for item in sorted(self.resources.items()) if pattern.fullmatch(item[0])]

    def delete(self, call: Call) -> Json:
        resource = self.existing(call.path)
        if call.api == "compute" and (user := next(self._users(call.path), "")):
            text = f"The resource '{call.path}' is already being used by '{user}'"
            raise Refusal(400, text, reason="resourceInUseByAnotherResource")
        for path in list(self.resources):
            if path == call.path or path.startswith(f"{call.path}/"):
                del self.resources[path]
        self.policies.pop(call.path, None)
        return self.operation(call, resource) if call.answers == "Operation" else {}

    def _users(self, path: str) -> Iterator[str]:
        for other, resource in self.resources.items():
            # An abandoned peering goes with its network.
            is_user = any(text.endswith(path) for _, text in _texts(resource))
            if is_user and "/connections/" not in other:
                yield other

    def copy_resource(self, resource: Json) -> Json:
        """Copies a resource for an answer; a shuffled world changes the order of its sets."""
        from tests.plan.stand_in import services

        answer = copy.deepcopy(resource)
        if self.shuffled:
            services.shuffle(answer)
        return answer

    def operation(self, call: Call, resource: Json) -> Json:
        """Return the API's answer: the resource itself, or an operation that is done."""
        if call.answers != "Operation":
            return self.copy_resource(resource)
        name = f"operation-{len(self.calls)}"
        if call.api in ("compute", "container", "sqladmin"):
            return {
                "name": name,
                "status": "DONE",
                "operationType": call.action,
                "targetLink": call.path,
            }
        return {
            "name": f"operations/{name}",
            "done": True,
            "response": self.copy_resource(resource),
        }


def _grants(policy: Mapping[str, Any]) -> set[tuple[str, str]]:
    grants = set()
    for binding in policy.get("bindings") or ():
        for member in binding.get("members") or ():
            grants.add((binding["role"], member))
    return grants


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield (field, text) at any depth, without the resource's own name, which is no reference."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in ("selfLink", "name"):
                yield from _texts(inner, key)
    elif isinstance(value, Iterable):
        for inner in value:
            yield from _texts(inner, name)
