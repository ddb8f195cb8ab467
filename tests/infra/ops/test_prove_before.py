"""A proof stops before anything starts if it must, states its price, and submits jobs that are
admitted.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from holdfast.cost.prices import load
from holdfast.manifests.render_context import templates
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary import roles
from holdfast.vocabulary.capacity import Capacity
from holdfast.vocabulary.exit_codes import EXIT_STOPPED
from holdfast.vocabulary.kubernetes import LABEL_NAME
from holdfast.vocabulary.machines import MACHINE_TYPES
from holdfast.vocabulary.pools import LABEL_NODEPOOL
from infra.contract.names import LABEL_RUN
from infra.ops import cost, prove
from infra.specs import resources
from tests.command_lines import APPS, parse
from tests.infra.ops.google import Gcloud
from tests.infra.samples import EXAMPLE

TABLE = load()
SPOT = prove.smallest_spot(EXAMPLE, TABLE)
SAMPLES = {"train-gang": "training.yaml", "batch-drain": "batch.yaml"}


def steps_in(folder: Path) -> dict[str, prove.Step]:
    title = f"{prove.MACHINES} x {SPOT.machine_type} Spot ({SPOT.name})"
    usd_per_hour = dict(prove.prices(EXAMPLE, SPOT, TABLE))[title]
    return {step.name: step for step in prove.steps(EXAMPLE, SPOT, folder, "r-1", usd_per_hour)}


def invoke_step(step: prove.Step, *options: str) -> Result:
    words = [*step.command[3:], *options]
    done = CliRunner().invoke(APPS[step.command[2]], words, catch_exceptions=False)
    assert done.exit_code == 0, f"{step.name}: {done.output}"
    return done


@pytest.mark.parametrize(
    ("there", "max_usd", "yes", "word"),
    [
        ("", 5, True, "--max-usd is 5.00"),
        ("", 1_000, False, "not confirmed"),  # no terminal to ask on
        ("container clusters describe", 1_000, True, "exists already"),
        ("storage buckets describe", 1_000, True, "exists already"),
    ],
)
def test_proof_does_not_start_if_too_expensive_or_destructive(
    gcloud: Gcloud,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    there: str,
    max_usd: int,
    yes: bool,
    word: str,
) -> None:
    gcloud.refuse("container clusters describe", "NOT_FOUND: no such cluster")
    gcloud.refuse("storage buckets describe", "404: no such bucket")
    if there:
        gcloud.answer(there, {"name": "x"})
    assert (
        prove.prove(
            EXAMPLE,
            max_usd=max_usd,
            yes=yes,
            out=tmp_path / "p",
        )
        == EXIT_STOPPED
    )
    shown = capsys.readouterr()
    assert word in shown.err, "the price is shown"
    assert "up to" in shown.out, "the price is shown"
    assert not (tmp_path / "p").exists()


def test_a_project_that_does_not_answer_is_not_taken_for_an_empty_one(
    gcloud: Gcloud, tmp_path: Path
) -> None:
    with pytest.raises(Unjudged, match="permission denied"):
        prove.prove(
            EXAMPLE,
            max_usd=1_000,
            yes=True,
            out=tmp_path / "p",
        )
    assert not (tmp_path / "p").exists()


def test_price_counts_sample_machines_and_fixed_costs() -> None:
    usd_by_part = dict(prove.prices(EXAMPLE, EXAMPLE.pool("spot-a100"), TABLE))
    machine = MACHINE_TYPES["a2-highgpu-1g"]
    a100 = TABLE.quote(machine, EXAMPLE.region, Capacity.SPOT)
    disk = EXAMPLE.pool("spot-a100").disk_gib * cost.USD["disk"]
    assert a100
    assert usd_by_part["3 x a2-highgpu-1g Spot (spot-a100)"] == pytest.approx(3 * (a100.usd + disk))
    assert usd_by_part["1 x e2-standard-4 (loader)"] > 4 * cost.USD["e2"]
    assert {"cluster", "NAT", "3 x e2-standard-4 (system)", "1 x g2-standard-8 (serving)"} <= set(
        usd_by_part
    )


def test_unpriced_parts_have_no_bound() -> None:
    assert EXAMPLE.database
    shared = replace(EXAMPLE, database=replace(EXAMPLE.database, tier="db-g1-small"))
    with pytest.raises(Unjudged, match="no price of database db-g1-small"):
        list(prove.prices(shared, SPOT, TABLE))
    with pytest.raises(Unjudged, match="no spot price of g2-standard-8"):
        prove.smallest_spot(EXAMPLE, replace(TABLE, skus=()))
    families = set()
    for name, machine in MACHINE_TYPES.items():
        if not machine.gpus:
            families.add(name.split("-")[0])
    assert families <= set(cost.USD), "every machine without a GPU has a price"


def test_the_samples_run_on_the_cheapest_spot_pool_that_holds_them() -> None:
    assert SPOT.name == "spot-l4-g2-standard-8"
    gpus = {"spot-l4": 1, "spot-a100": 1, "spot-a100x8": 1}
    groups = []
    for group in EXAMPLE.groups:
        groups.append(replace(group, max_nodes=gpus.get(group.name, group.max_nodes)))
    with pytest.raises(InputError, match="large enough for the sample jobs"):
        prove.smallest_spot(replace(EXAMPLE, groups=tuple(groups)), TABLE)


def test_every_proof_command_exists(tmp_path: Path) -> None:
    """Parsed by the commands themselves: an option that was renamed fails here, not after an hour
    of a proof.
    """
    steps = []
    for step in steps_in(tmp_path).values():
        if step.command[0] == sys.executable:
            steps.append(step)
    assert len(steps) >= 15
    for step in steps:
        program, *words = step.command[2:]
        # A module takes no options.
        assert (find_spec(program) and not words) if "." in program else parse([program, *words])


def test_all_labeled_resources_carry_the_run_label() -> None:
    labeled = 0
    for resource in resources(EXAMPLE.with_run_label("r-1")):
        for key in ("labels", "resource_labels", "user_labels"):
            labels = resource.arguments.get(key)
            if isinstance(labels, dict) and resource.kind != "google_container_node_pool":
                assert labels[LABEL_RUN] == "r-1", resource.address
                labeled += 1
    assert labeled > 8


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the example, with its samples rendered by the step of the proof."""
    folder = tmp_path_factory.mktemp("proof")
    invoke_step(steps_in(folder)["render"])
    return folder


def bodies(path: Path) -> Iterator[Any]:
    bodies = YAML(typ="safe").load_all(path.read_text())
    return (body for body in bodies if body["kind"] in ("Job", "JobSet"))


def test_submitted_jobs_fit_the_pool_and_are_waited_for(run: Path) -> None:
    for sample, file in SAMPLES.items():
        path = run / "manifests" / "example" / "samples" / file
        [body] = [body for body in bodies(path) if body["metadata"]["labels"][LABEL_NAME] == sample]
        spec = body["spec"]
        job = spec["replicatedJobs"][0]["template"]["spec"] if "replicatedJobs" in spec else spec
        [pod] = [template["spec"] for template in templates(spec)]
        assert pod["nodeSelector"][LABEL_NODEPOOL] == SPOT.name
        assert job["parallelism"] == prove.PODS <= SPOT.max_nodes
        limits = pod["containers"][0]["resources"]["limits"]
        assert int(limits["nvidia.com/gpu"]) == MACHINE_TYPES[SPOT.machine_type].gpus, (
            "one pod to a machine"
        )
        waits = steps_in(run)[f"end-{sample}"].command
        assert body["kind"].lower() in waits
        assert f"-n={body['metadata']['namespace']}" in waits
        assert f"-l={LABEL_NAME}={sample}" in waits
    assert roles.NAMESPACE_TRAINING == "training"
    assert roles.NAMESPACE_BATCH == "batch"
    text = (run / "manifests" / "example" / "samples" / "batch.yaml").read_text()
    assert "/data/items.jsonl" in text


def test_every_proof_job_is_admitted_by_its_price_cap(run: Path) -> None:
    """`submit` judges them here: its refusal would end a proof after an hour of deploying."""
    submitted = []
    for name, step in steps_in(run).items():
        if name.startswith("submit-"):
            submitted.append(step)
    assert [step.name for step in submitted] == [
        "submit-train-gang",
        "submit-batch-load",
        "submit-batch-drain",
    ]
    for step in submitted:
        done = invoke_step(step, "--dry-run", "--json")
        assert (f'"{SPOT.name}"' in done.stdout) is (step.name != "submit-batch-load"), done.stdout
