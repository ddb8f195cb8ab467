"""A replay shows the effects of a destroy and of a removed block, against the first plan's
state.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.ops import replay
from infra.ops.engine import EngineFailed

pytestmark = [pytest.mark.plan, pytest.mark.timeout(600)]
SynthesizePlans = Callable[[str], tuple[Path, dict[str, dict[str, Any]]]]


@pytest.mark.parametrize("stack", ["foundation-prod", "cluster-prod"])
def test_destroying_production_is_not_even_planned(
    synthesize_plans: SynthesizePlans,
    stack: str,
    tmp_path: Path,
) -> None:
    stacks, plans = synthesize_plans("prod")
    configuration = json.loads((stacks / stack / "cdk.tf.json").read_text())
    with pytest.raises(EngineFailed, match=r"(Resource i|I)nstance cannot be destroyed"):
        state = replay.make_state(plans[stack])
        replay.plan_against(configuration, state, tmp_path, "-destroy", initialized=stacks / stack)


def test_data_outlives_the_block_that_made_it(
    synthesize_plans: SynthesizePlans, tmp_path: Path
) -> None:
    """A database left out of the environment: what the apply would delete is refused or abandoned,
    one by one.
    """
    stacks, plans = synthesize_plans("prod")
    configuration = json.loads((stacks / "foundation-prod" / "cdk.tf.json").read_text())
    for kind in list(configuration["resource"]):
        if kind.startswith(
            (
                "google_sql_",
                "google_storage_bucket",
                "google_logging_project_sink",
                "google_pubsub_",
                "google_artifact",
            )
        ):
            del configuration["resource"][kind]
    state = replay.make_state(plans["foundation-prod"])
    plan = replay.plan_against(
        configuration,
        state,
        tmp_path,
        initialized=stacks / "foundation-prod",
    )
    deleted = {}
    for c in plan["resource_changes"]:
        if c["change"]["actions"] == ["delete"]:
            deleted[c["address"]] = c["change"]["before"]
    assert {
        "google_sql_user.batch",
        "google_sql_database.results",
        "google_storage_bucket.checkpoints",
    } <= set(deleted)
    for address, before in deleted.items():
        # Grants and a sink hold no data.
        if "_iam_member" not in address and "_sink." not in address:
            assert before["deletion_policy"] in ("PREVENT", "ABANDON"), address
