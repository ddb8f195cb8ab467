"""The real provider plans an environment with an adopted cluster, without a network."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from infra import cdk, environments, main
from infra.contract.names import stack
from infra.ops import adopt, plan
from tests.infra.samples import EXAMPLE

ENVIRONMENT = replace(EXAMPLE, cluster=replace(EXAMPLE.cluster, name="ml-platform"))
CLUSTER = "google_container_cluster.cluster"
BLOCK = {
    "to": CLUSTER,
    "id": f"projects/{EXAMPLE.project}/locations/{EXAMPLE.region}/clusters/ml-platform",
}


@pytest.mark.plan
@pytest.mark.timeout(600)
def test_an_adopted_clusters_plan_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "_FOLDER", tmp_path)
    adoption = adopt.Adoption(
        blocks=[BLOCK],
        changes={},
        created=[],
        unmanaged=[],
    )
    adopt.write(ENVIRONMENT, adoption)
    app = cdk.App(outdir=str(tmp_path / "synth"))
    main.build(app, ENVIRONMENT, local_state=True)
    app.synth()
    name = stack("cluster", ENVIRONMENT.name)
    folder = tmp_path / "synth" / "stacks" / name
    assert json.loads((folder / "cdk.tf.json").read_text())["import"] == [BLOCK]
    planned = json.loads(plan.plan_stacks({name: folder}, tmp_path / "out")[name].read_text())
    assert CLUSTER in {change.address for change in plan.list_changes(planned)}
