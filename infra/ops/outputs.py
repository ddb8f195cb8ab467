"""What people need after a deployment, from the environment alone. `cdktf output` reads what is deployed."""

from holdfast.tables import print_json, print_table
from infra.contract.names import AREAS
from infra.environments import Environment
from infra.specs.outputs import outputs


def show(environment: Environment, as_json: bool = False) -> None:
    by_area = outputs(environment)
    # What is typed next comes first.
    found = {name: value for area in ("cluster", *AREAS) for name, value in by_area[area].items()}
    if as_json:
        print_json("outputs", environment=environment.name, outputs=found)
    else:
        print_table(("OUTPUT", "VALUE"), list(found.items()))
