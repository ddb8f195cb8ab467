"""Import blocks for a cluster and node pools that are there already, from a recorded description of
them.

The real provider reads the record from a server on this machine and plans the cluster's stack
against it, without any project. Guarantee: nothing is written where an apply would replace the
cluster or a pool.
"""

import json
import sys
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from holdfast.support.errors import InputError, Stopped
from holdfast.support.progress import working
from infra.contract import names
from infra.environments import Environment, imports_of, source_of
from infra.ops import replay
from infra.ops.synth import ROOT, synthesise
from infra.rules import require_clean
from infra.specs.pools import CLUSTER

DESCRIBE = "gcloud container clusters describe NAME --location=REGION --format=json"
Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Adoption:
    blocks: list[dict[str, str]]
    """As Terraform's `import`."""
    changes: dict[str, list[str]]
    """Address -> attributes that the next apply changes in place."""
    created: list[str]
    """Addresses of what the cluster's stack adds."""
    left: list[str]
    """Node pools of the record that the environment does not have: they stay, and Terraform does
    not manage them.
    """


def read(path: Path) -> Record:
    """The description of one cluster. Raises InputError."""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found["nodePools"], list) or not all((found["name"], found["location"])):
            raise ValueError("no name, location or nodePools")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            "--adopt",
            got=f"{path}: {error}"[:300],
            allowed="the description of a cluster",
            fix=f"{DESCRIBE} > FILE",
        ) from error
    return found


def run(environment: Environment, record: Path) -> None:
    """Write the blocks and print what the next apply does. Raises InputError and Stopped, as `read`
    and `adopt`.
    """
    found = read(record)
    require_clean(environment)
    folder = ROOT / "out" / "adopt" / environment.name
    with working(f"adopt {found['name']}") as step:
        step("synthesise")
        stacks = synthesise(environment.name, folder / "synth", local_state=True)
        step("plan")
        made = adopt(
            environment, found, stacks[names.stack("cluster", environment.name)], folder / "plan"
        )
    for line in report(made):
        print(line)
    print(f"wrote {write(environment, made).relative_to(ROOT)}")
    print(f"Next: make diff ENV={environment.name}, which reads the project", file=sys.stderr)


def adopt(
    environment: Environment,
    record: Record,
    stack: Path,
    folder: Path,
) -> Adoption:
    """`stack`: the synthesised stack of the cluster. Raises InputError for another cluster, and
    Stopped where the plan would replace something.
    """
    _require_same(environment, record)
    pools = {pool["name"] for pool in record["nodePools"]}
    ours = {pool.name for pool in environment.pools()}
    path = f"projects/{environment.project}/locations/{environment.region}/clusters/{environment.cluster_name}"
    parts = path.split("/")[1::2]
    blocks = [{"to": CLUSTER, "id": path}]
    blocks += [
        {
            "to": f"google_container_node_pool.pool-{name}",
            "id": "/".join((*parts, name)),
        }
        for name in sorted(pools & ours)
    ]
    configuration = replay.unprotected(stack)  # what is protected and must go shows as such
    folder.mkdir(parents=True, exist_ok=True)
    with _serving(path, record) as address:
        configuration["provider"]["google"][0]["container_custom_endpoint"] = f"{address}/v1/"
        plan = replay.plan_against(
            configuration | {"import": blocks}, _NOTHING, folder, "-refresh=true"
        )
    found = {change["address"]: change["change"] for change in plan["resource_changes"]}
    _refuse_replacements(environment, found)
    return Adoption(
        blocks=blocks,
        changes={
            at: replay.differing(c["before"], c["after"])
            for at, c in found.items()
            if c["actions"] == ["update"]
        },
        created=sorted(at for at, c in found.items() if c["actions"] == ["create"]),
        left=sorted(pools - ours),
    )


def write(environment: Environment, found: Adoption) -> Path:
    """Next to the environment, for every later synthesis. An import of what is in the state changes
    nothing.
    """
    path = imports_of(environment.name)
    path.write_text(json.dumps(found.blocks, indent=1) + "\n", encoding="utf-8")
    return path


def report(found: Adoption) -> Iterator[str]:
    yield f"imported: {', '.join(block['to'] for block in found.blocks)}"
    for address, attributes in found.changes.items():
        yield f"changed in place: {address}: {', '.join(attributes)}"
    yield f"created: {', '.join(found.created) or 'nothing'}"
    if found.left:
        yield f"left alone, since no group has their name: {', '.join(found.left)}"


# A state in which nothing exists.
_NOTHING: dict[str, Any] = {
    "version": 4,
    "terraform_version": "1.5.0",
    "serial": 1,
    "lineage": replay.LINEAGE,
    "outputs": {},
    "resources": [],
}


def _require_same(environment: Environment, record: Record) -> None:
    got = (record["name"], record["location"])
    wanted = (environment.cluster_name, environment.region)
    if got != wanted:
        raise InputError(
            "--adopt: the file describes another cluster",
            got=" in ".join(got),
            allowed=" in ".join(wanted),
            fix=(
                f"set cluster.name and region in {source_of(environment.name)}; a zonal cluster"
                " cannot become regional"
            ),
        )


def _refuse_replacements(environment: Environment, found: Mapping[str, Any]) -> None:
    forced = []
    for at, change in found.items():
        if "delete" in change["actions"]:
            forced.append(f"{at}: {', '.join(sorted(replay.forcing(change)))}")
    if forced:
        raise Stopped(
            "the next apply would destroy and create again what is adopted; nothing was written",
            got="; ".join(forced),
            allowed="changes in place",
            fix=(
                f"state in {source_of(environment.name)} what the cluster has, or give the group"
                " another name"
            ),
        )


@contextmanager
def _serving(path: str, record: Record) -> Generator[str]:
    """A server that knows the cluster and its pools, and nothing else."""
    # The provider would ask Compute Engine for each.
    pools = [
        {key: value for key, value in pool.items() if key != "instanceGroupUrls"}
        for pool in record["nodePools"]
    ]
    known = {
        f"/v1/{path}": record | {"nodePools": pools},
        f"/v1/{path}/nodePools": {"nodePools": pools},
    }
    known |= {f"/v1/{path}/nodePools/{pool['name']}": pool for pool in pools}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = known.get(self.path.partition("?")[0])
            body = json.dumps(
                found or {"error": {"code": 404, "message": "not in the record"}}
            ).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: standard error is the command's."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
