"""Import blocks for an existing cluster and its node pools, from a recorded description of them.

The real provider reads the record from a server on this machine and plans the cluster's stack
against it, without any project. Nothing is written if an apply would replace the cluster or a pool.
"""

import json
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from holdfast.support.errors import InputError, Stopped
from holdfast.support.progress import working
from infra.contract import names
from infra.environments import Environment, imports_path, source_path
from infra.ops import replay
from infra.ops.synth import ROOT, synthesize
from infra.rules import require_clean
from infra.specs.pools import CLUSTER

DESCRIBE = "gcloud container clusters describe NAME --location=REGION --format=json"
Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Adoption:
    blocks: list[dict[str, str]]
    """Terraform's `import` blocks."""
    changes: dict[str, list[str]]
    """Address -> attributes that the next apply changes in place."""
    created: list[str]
    """Addresses of resources that the cluster's stack adds."""
    unmanaged: list[str]
    """Node pools of the record that the environment does not have. They stay, without Terraform."""


def read(path: Path) -> Record:
    """Read the description of one cluster. Raises InputError."""
    try:
        cluster: Any = json.loads(path.read_text(encoding="utf-8"))
        has_pools = isinstance(cluster["nodePools"], list)
        if not has_pools or not cluster["name"] or not cluster["location"]:
            raise ValueError("no name, location or nodePools")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            "--adopt",
            got=f"{path}: {error}"[:300],
            allowed="the description of a cluster",
            fix=f"{DESCRIBE} > FILE",
        ) from error
    return cluster


def run(environment: Environment, file: Path) -> None:
    """Write the blocks and print what the next apply does. Raises InputError and Stopped, as `read`
    and `adopt` do.
    """
    record = read(file)
    require_clean(environment)
    folder = ROOT / "out" / "adopt" / environment.name
    with working(f"adopt {record['name']}") as step:
        step("synthesize")
        stacks = synthesize(environment.name, folder / "synth", local_state=True)
        step("plan")
        stack = stacks[names.stack("cluster", environment.name)]
        adoption = adopt(environment, record, stack, folder / "plan")
    for line in report(adoption):
        print(line)
    print(f"wrote {write(environment, adoption).relative_to(ROOT)}")
    print(f"Next: make diff ENV={environment.name}, which reads the project", file=sys.stderr)


def adopt(
    environment: Environment,
    record: Record,
    stack: Path,
    folder: Path,
) -> Adoption:
    """Plan `stack`, the synthesized stack of the cluster, against the record. Raises InputError if
    the record describes another cluster, and Stopped if the plan would replace something.
    """
    _require_same_cluster(environment, record)
    recorded_pools = {pool["name"] for pool in record["nodePools"]}
    pools = {pool.name for pool in environment.pools()}
    project = environment.project
    region = environment.region
    cluster = environment.cluster_name
    path = f"projects/{project}/locations/{region}/clusters/{cluster}"
    blocks = [{"to": CLUSTER, "id": path}]
    for name in sorted(recorded_pools & pools):
        address = f"google_container_node_pool.pool-{name}"
        blocks.append({"to": address, "id": f"{project}/{region}/{cluster}/{name}"})
    # Without protections, the plan shows what would be replaced instead of failing.
    configuration = replay.remove_protections(stack)
    folder.mkdir(parents=True, exist_ok=True)
    with _serve_record(path, record) as url:
        configuration["provider"]["google"][0]["container_custom_endpoint"] = f"{url}/v1/"
        configuration["import"] = blocks
        plan = replay.plan_against(configuration, _EMPTY_STATE, folder, "-refresh=true")
    changes: dict[str, list[str]] = {}
    created: list[str] = []
    replacements: list[str] = []
    for resource in plan["resource_changes"]:
        address = resource["address"]
        change = resource["change"]
        if "delete" in change["actions"]:
            forcing = sorted(replay.list_forcing(change))
            replacements.append(f"{address}: {', '.join(forcing)}")
        elif change["actions"] == ["update"]:
            changes[address] = replay.list_differences(change["before"], change["after"])
        elif change["actions"] == ["create"]:
            created.append(address)
    if replacements:
        raise Stopped(
            "the next apply would replace adopted resources; nothing was written",
            got="; ".join(replacements),
            allowed="changes in place",
            fix=_suggest_fix(environment, replacements),
        )
    return Adoption(
        blocks=blocks,
        changes=changes,
        created=sorted(created),
        unmanaged=sorted(recorded_pools - pools),
    )


def _suggest_fix(environment: Environment, replacements: list[str]) -> str:
    # No field: without Dataplane V2 nothing enforces the network policies of the platform.
    if any("datapath_provider" in replacement for replacement in replacements):
        return (
            "a cluster without Dataplane V2 can never get it: deploy a new one in its network"
            " (network.existing), move the jobs, and delete the old one"
        )
    return (
        f"state in {source_path(environment.name)} what the cluster has, or give the group"
        " another name"
    )


def write(environment: Environment, adoption: Adoption) -> Path:
    """Write the blocks next to the environment, for every later synthesis. Terraform ignores blocks
    of resources that are in the state.
    """
    path = imports_path(environment.name)
    path.write_text(json.dumps(adoption.blocks, indent=1) + "\n", encoding="utf-8")
    return path


def report(adoption: Adoption) -> Iterator[str]:
    """Yield the lines that the command prints."""
    addresses = [block["to"] for block in adoption.blocks]
    yield f"imported: {', '.join(addresses)}"
    for address, attributes in adoption.changes.items():
        yield f"changed in place: {address}: {', '.join(attributes)}"
    yield f"created: {', '.join(adoption.created) or 'nothing'}"
    if adoption.unmanaged:
        yield f"left alone, since no group has their name: {', '.join(adoption.unmanaged)}"


_EMPTY_STATE: dict[str, Any] = {
    "version": 4,
    "terraform_version": "1.5.0",
    "serial": 1,
    "lineage": replay.LINEAGE,
    "outputs": {},
    "resources": [],
}


def _require_same_cluster(environment: Environment, record: Record) -> None:
    got = f"{record['name']} in {record['location']}"
    allowed = f"{environment.cluster_name} in {environment.region}"
    if got != allowed:
        raise InputError(
            "--adopt: the file describes another cluster",
            got=got,
            allowed=allowed,
            fix=(
                f"set cluster.name and region in {source_path(environment.name)}; a zonal cluster"
                " cannot become regional"
            ),
        )


class _RecordServer(ThreadingHTTPServer):
    # The provider asks ten times at once. By default only five connections wait to be accepted.
    request_queue_size = 128


@contextmanager
def _serve_record(path: str, record: Record) -> Generator[str]:
    """Serve the cluster and its pools, and nothing else, as GKE's API. Yields the server's URL."""
    pools = []
    for recorded in record["nodePools"]:
        pool = dict(recorded)
        # The provider would ask Compute Engine for each instance group.
        pool.pop("instanceGroupUrls", None)
        pools.append(pool)
    objects = {
        f"/v1/{path}": record | {"nodePools": pools},
        f"/v1/{path}/nodePools": {"nodePools": pools},
    }
    for pool in pools:
        objects[f"/v1/{path}/nodePools/{pool['name']}"] = pool
    missing = {"error": {"code": 404, "message": "not in the record"}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = objects.get(self.path.partition("?")[0])
            body = json.dumps(content or missing).encode()
            self.send_response(200 if content else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Keep requests out of the command's standard error."""

    server = _RecordServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
