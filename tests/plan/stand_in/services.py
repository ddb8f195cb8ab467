"""Differences between APIs: names that they choose, fields that they fill in, special calls."""

import itertools
import random
from collections.abc import Callable
from typing import Any

from tests.plan.stand_in import callers, defaults, strict
from tests.plan.stand_in.definitions import Call, Json
from tests.plan.stand_in.world import Refusal, World

_numbers = itertools.count(1_000_000_000_000_000)
_orders = random.Random(7)
# Sets to the API, lists to the provider.
UNORDERED = ("enableComponents", "taints")


def shuffle(value: Any) -> None:
    """Shuffle lists in place, so that two or more items never have the order that was sent."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in UNORDERED and isinstance(inner, list):
                value[key] = _other_order(inner)
            else:
                shuffle(inner)
    elif isinstance(value, list):
        for inner in value:
            shuffle(inner)


def _other_order(sent: list[Any]) -> list[Any]:
    turned = sent[1:] + sent[:1]
    return turned if len(sent) < 3 else _orders.sample(turned, len(turned))


def complete(world: World, call: Call, path: str, resource: Json) -> None:
    """Fields that the API adds and the provider reads."""
    defaults.complete(call, resource)
    resource.setdefault("name", path.rpartition("/")[2])
    if call.api == "compute":
        resource["selfLink"] = f"https://www.googleapis.com/compute/v1/{path}"
        resource["id"] = str(next(_numbers))
    if call.api == "storage":
        resource |= {"id": resource["name"], "projectNumber": world.number}
    if call.id in FILLED:
        FILLED[call.id](world, path, resource)


def _cluster(world: World, call: Call) -> Json:
    body = call.body["cluster"]
    path = f"{call.path}/{body['name']}"
    answer = world.create(call, path, body)
    cluster = world.resources[path]
    for key in ("initialNodeCount", "nodeConfig"):
        cluster.pop(key, None)
    pool = {
        "name": "default-pool",
        "config": body.get("nodeConfig", {}),
        "initialNodeCount": body["initialNodeCount"],
    }
    world.resources[f"{path}/nodePools/default-pool"] = pool
    return answer


def _show_cluster(world: World, call: Call) -> Json:
    cluster = world.copy_resource(world.existing(call.path))
    return cluster | {
        "nodePools": [
            world.copy_resource(pool) for _, pool in world.below(f"{call.path}/nodePools")
        ]
    }


def _fill_cluster(world: World, path: str, cluster: Json) -> None:
    location = path.split("/")[3]
    cluster |= {
        "location": location,
        "selfLink": f"https://container.googleapis.com/v1/{path}",
    }
    cluster["networkConfig"] |= {"network": cluster["network"], "subnetwork": cluster["subnetwork"]}


def _node_pool(world: World, call: Call) -> Json:
    body = call.body["nodePool"]
    world.existing(call.path.removesuffix("/nodePools"))
    return world.create(call, f"{call.path}/{body['name']}", body)


def _fill_pool(world: World, path: str, pool: Json) -> None:
    strict.fill_pool(pool)
    pool["selfLink"] = f"https://container.googleapis.com/v1/{path}"


def _fill_policy(_: World, path: str, policy: Json) -> None:
    for number, condition in enumerate(policy["conditions"], 1):
        condition["name"] = f"{path}/conditions/{number}"


def _fill_sink(world: World, _: str, sink: Json) -> None:
    """A sink makes the agent that writes for it."""
    sink["writerIdentity"] = f"serviceAccount:{world.make_agent('logging')}"


def _account(world: World, call: Call) -> Json:
    name = f"{call.body['accountId']}@{world.project}.iam.gserviceaccount.com"
    path = f"{call.path}/{name}"
    account = {
        **call.body.get("serviceAccount", {}),
        "name": path,
        "email": name,
        "uniqueId": str(next(_numbers)),
    }
    defaults.complete(call, account)
    world.resources[path] = account | {"projectId": world.project}
    return world.copy_resource(world.resources[path])


def _add_numbers(world: World, call: Call) -> Json:
    path = f"{call.path}/{next(_numbers)}"
    return world.create(call, path, {**call.body, "name": path})


def _record_changes(world: World, call: Call) -> Json:
    zone = call.path.removesuffix("/changes")
    world.existing(zone)
    for record in call.body.get("deletions") or ():
        del world.resources[_record(zone, record)]
    for record in call.body.get("additions") or ():
        world.resources[_record(zone, record)] = record
    return {
        "id": "1",
        "status": "done",
        **call.body,
    }


def _record(zone: str, record: Json) -> str:
    return f"{zone}/rrsets/{record['name']}+{record['type']}"


def _records(world: World, call: Call) -> Json:
    names = call.query.get("name")
    records = []
    for _, record in world.below(call.path):
        if not names or (record["name"], record["type"]) == (names[0], call.query["type"][0]):
            records.append(record)
    return {"rrsets": records}


def _label(world: World, call: Call) -> Json:
    world.existing(call.path.removesuffix("/setLabels"))["labels"] = call.body.get("labels", {})
    return world.operation(call, {})


def _peer(world: World, call: Call) -> Json:
    path = _peering(call.path, call.body["network"])
    return world.create(call, path, {**call.body, "peering": "servicenetworking-googleapis-com"})


def _peering(collection: str, network: str) -> str:
    return f"{collection}/{network.rpartition('/')[2]}"


def _peerings(world: World, call: Call) -> Json:
    peering = _peering(call.path, call.query["network"][0])
    return {"connections": [world.resources[peering]] if peering in world.resources else []}


def _instance(world: World, call: Call) -> Json:
    name = call.body["name"]
    body = call.body
    network = body["settings"]["ipConfiguration"].get("privateNetwork", "").rpartition("/")[2]
    if network and not any(p.endswith(f"/connections/{network}") for p in world.resources):
        raise Refusal(400, f"Network {network} has no private services access", reason="invalid")
    return world.create(call, f"{call.path}/{name}", body)


def _fill_instance(world: World, path: str, instance: Json) -> None:
    instance |= {
        "project": world.project,
        "connectionName": f"{world.project}:{instance['region']}:{instance['name']}",
        "selfLink": path,
    }


def _delete_instance(world: World, call: Call) -> Json:
    if world.existing(call.path)["settings"].get("deletionProtectionEnabled"):
        raise Refusal(400, "The instance is protected against deletion.", reason="invalid")
    return world.delete(call)


def _list_enabled(world: World, call: Call) -> Json:
    names = [f"{name}.googleapis.com" for name in sorted(world.enabled)]
    about = (
        {
            "name": f"projects/{world.number}/services/{name}",
            "config": {"name": name},
        }
        for name in names
    )
    return {"services": [service | {"state": "ENABLED"} for service in about]}


def _enable(world: World, call: Call) -> Json:
    last_part = call.path.rpartition("/")[2]
    names = call.body.get("serviceIds") or [last_part.partition(":")[0]]
    world.enabled |= {name.removesuffix(".googleapis.com") for name in names}
    # Other agents are created on request, or on first use.
    for service in {"compute", "container"} & world.enabled:
        world.make_agent(service)
    return world.operation(call, {})


def _project(world: World, call: Call) -> Json:
    return {
        "projectId": world.project,
        "projectNumber": world.number,
        "lifecycleState": "ACTIVE",
        "name": "trial",
    }


def _image_policy(world: World, call: Call) -> Json:
    """Return the policy: there always is one, Google's own until somebody writes another."""
    usual = {
        "name": call.path,
        "defaultAdmissionRule": {"evaluationMode": "ALWAYS_ALLOW"},
    }
    return world.copy_resource(world.resources.get(call.path, usual))


def _write_image_policy(world: World, call: Call) -> Json:
    if call.body["defaultAdmissionRule"]["evaluationMode"] == "ALWAYS_ALLOW":
        world.resources.pop(call.path, None)  # as a destroy leaves it
        return call.body
    world.resources[call.path] = call.body
    return world.copy_resource(call.body)


def _object(world: World, call: Call) -> Json:
    name = callers.find_object(call)
    world.existing(call.path.removesuffix("/o"))
    world.resources[f"{call.path}/{name}"] = {"name": name, **call.body}
    return world.copy_resource(world.resources[f"{call.path}/{name}"])


def _objects(world: World, call: Call) -> Json:
    (prefix,) = call.query.get("prefix", [""])
    items = []
    for path, resource in sorted(world.resources.items()):
        if path.startswith(f"{call.path}/{prefix}"):
            items.append(world.copy_resource(resource))
    return {"items": items}


SPECIAL: dict[str, Callable[[World, Call], Json]] = {
    "billingbudgets.billingAccounts.budgets.create": _add_numbers,
    "binaryauthorization.projects.getPolicy": _image_policy,
    "binaryauthorization.projects.updatePolicy": _write_image_policy,
    "cloudresourcemanager.projects.get": _project,
    "compute.globalAddresses.setLabels": _label,
    "compute.projects.get": lambda world, call: {"name": world.project, "id": world.number},
    "container.projects.locations.clusters.create": _cluster,
    "container.projects.locations.clusters.get": _show_cluster,
    "container.projects.locations.clusters.nodePools.create": _node_pool,
    "dns.changes.create": _record_changes,
    "dns.changes.get": lambda world, call: {"id": "1", "status": "done"},
    "dns.resourceRecordSets.list": _records,
    "iam.projects.locations.workloadIdentityPools.listAttestationRules": lambda world, call: {},
    "iam.projects.serviceAccounts.create": _account,
    "monitoring.projects.alertPolicies.create": _add_numbers,
    "monitoring.projects.dashboards.create": _add_numbers,
    "monitoring.projects.notificationChannels.create": _add_numbers,
    "servicenetworking.services.connections.create": _peer,
    "servicenetworking.services.connections.list": _peerings,
    "serviceusage.services.batchEnable": _enable,
    "serviceusage.services.enable": _enable,
    "serviceusage.services.list": _list_enabled,
    "sql.instances.delete": _delete_instance,
    "sql.instances.insert": _instance,
    "storage.objects.insert": _object,
    "storage.objects.list": _objects,
}
FILLED: dict[str, Callable[[World, str, Json], None]] = {
    "container.projects.locations.clusters.create": _fill_cluster,
    "container.projects.locations.clusters.nodePools.create": _fill_pool,
    "logging.projects.sinks.create": _fill_sink,
    "monitoring.projects.alertPolicies.create": _fill_policy,
    "sql.instances.insert": _fill_instance,
}
