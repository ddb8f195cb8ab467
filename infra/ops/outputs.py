"""What people need after a deployment, from the environment alone. `cdktf output` reads what is deployed."""

from holdfast.tables import print_json, print_table
from infra.contract.names import AREAS
from infra.environments import Environment
from infra.specs.outputs import outputs


def show(environment: Environment, as_json: bool = False) -> None:
    by_area = outputs(environment)
    # What is typed next comes first.
    found = {name: value for area in ("cluster", *AREAS) for name, value in by_area[area].items()}
    pools = _pools(environment)
    if as_json:
        print_json("outputs", environment=environment.name, outputs=found, pools=pools)
    else:
        print_table(("OUTPUT", "VALUE"), list(found.items()))
        print()
        print_table([key.upper() for key in pools[0]], [list(pool.values()) for pool in pools])


def _pools(environment: Environment) -> list[dict[str, str]]:
    return [
        {
            "pool": p.name,
            "role": p.role.value,
            "capacity": p.capacity.value,
            "machine": p.machine_type,
            "gpus": f"{p.gpus_per_node} x {p.accelerator}" if p.gpus_per_node else "",
            "nodes": f"{p.min_nodes}..{p.max_nodes}",
            "window": f"{p.window.pod_s} s" if p.interruptible else "",
            "taints": ", ".join(str(t) for t in p.taints),
        }
        for p in environment.pools()
    ]
