"""What a proof submits: really rendered, really priced, and on no machine but those that its estimate counts."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner, Result

from holdfast.contract.capacity import Capacity
from holdfast.contract.errors import InputError, Unjudged
from holdfast.contract.machines import MACHINE_TYPES
from holdfast.contract.pools import LABEL_NODEPOOL
from holdfast.manifests.render_context import templates
from holdfast.place import prices
from infra import environments
from infra.environments import Environment
from infra.proof import dataset, machines, rates, steps
from infra.proof.estimate import estimate, spot_hourly
from infra.proof.machines import smallest_spot
from tests.infra.samples import EXAMPLE
from workloads.__main__ import app

TABLE, RATES = prices.load(), rates.load()


def run_in(folder: Path) -> steps.Run:
    pool = smallest_spot(EXAMPLE, TABLE, RATES)
    return steps.Run(pool=pool, folder=folder, usd_per_hour=spot_hourly(EXAMPLE, pool, TABLE, RATES))


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the example, with its samples rendered by the step of the proof."""
    run = run_in(tmp_path_factory.mktemp("proof"))
    done = invoked(next(step for step in steps.proof(EXAMPLE, run) if step.name == "render"))
    assert done.exit_code == 0, done.output
    return run.folder


@pytest.fixture
def run(rendered: Path, tmp_path: Path) -> steps.Run:
    shutil.copytree(rendered, tmp_path, dirs_exist_ok=True)
    return run_in(tmp_path)


def invoked(step: steps.Step, *more: str) -> Result:
    assert step.command[:3] == steps.WORK
    return CliRunner().invoke(app, [*step.command[3:], *more], catch_exceptions=False)


@pytest.mark.parametrize(("name", "smallest"), [("example", "spot-l4-g2-standard-8"), ("dev", "spot-l4-g2-standard-4")])
def test_the_samples_run_on_the_cheapest_spot_pool_that_holds_them(name: str, smallest: str) -> None:
    environment = environments.load(name)
    assert smallest_spot(environment, TABLE, RATES).name == smallest
    spot = [p for p in environment.pools() if p.capacity is Capacity.SPOT]
    hourly = {pool.name: machines.hourly(environment, TABLE, RATES, pool) for pool in spot}
    assert min(hourly, key=lambda each: hourly[each]) == smallest


def test_a_pool_that_does_not_hold_a_sample_is_passed_over() -> None:
    def cut(**most: int) -> Environment:
        groups = tuple(replace(g, max_nodes=most.get(g.name, g.max_nodes)) for g in EXAMPLE.groups)
        return replace(EXAMPLE, groups=groups)

    assert smallest_spot(cut(**{"spot-l4": 1}), TABLE, RATES).name == "spot-a100"
    with pytest.raises(InputError, match="holds a sample"):
        smallest_spot(cut(**{"spot-l4": 1, "spot-a100": 1}), TABLE, RATES)
    with pytest.raises(Unjudged, match="no spot price of g2-standard-8"):
        smallest_spot(EXAMPLE, replace(TABLE, skus=()), RATES)


def test_what_is_submitted_fits_the_pool_and_the_estimate(run: steps.Run) -> None:
    folder = run.samples / EXAMPLE.name / "samples"
    for sample in steps.SAMPLES:
        [body] = [body for body in bodies(folder / sample.file) if named(body) == sample.name and "spec" in body]
        spec = body["spec"]
        job = spec["replicatedJobs"][0]["template"]["spec"] if "replicatedJobs" in spec else spec
        [pod] = [template["spec"] for template in templates(spec)]
        assert pod["nodeSelector"][LABEL_NODEPOOL] == run.pool.name
        assert job["parallelism"] == machines.PODS <= run.pool.max_nodes
        limits = pod["containers"][0]["resources"]["limits"]
        assert int(limits["nvidia.com/gpu"]) == MACHINE_TYPES[run.pool.machine_type].gpus, "one pod to a machine"
    found = {item.what: item.usd for item in estimate(EXAMPLE, run.pool, TABLE, RATES, hours=1.0)}
    hourly = machines.hourly(EXAMPLE, TABLE, RATES, run.pool)
    assert {what: usd for what, usd in found.items() if "Spot" in what} == {
        f"{machines.NODES} x g2-standard-8 Spot (spot-l4-g2-standard-8)": pytest.approx(machines.NODES * hourly)
    }


def bodies(path: Path) -> Iterator[Any]:
    """Jobs and JobSets, without what stands beside them."""
    return (body for body in YAML(typ="safe").load_all(path.read_text()) if body["kind"] in ("Job", "JobSet"))


def named(body: Any) -> str:
    return body["metadata"]["labels"]["app.kubernetes.io/name"]


def test_every_job_of_a_proof_is_admitted_by_its_own_cap(run: steps.Run) -> None:
    """As `submit` judges them: what it refuses ends a proof after an hour of deploying."""
    submitted = [step for step in steps.proof(EXAMPLE, run) if step.name.startswith("submit-")]
    assert [step.name for step in submitted] == ["submit-train-gang", "submit-batch-load", "submit-batch-drain"]
    for step in submitted:
        done = invoked(step, "--dry-run", "--json")
        assert done.exit_code == 0, f"{step.name}: {done.output}"
        [bought] = json.loads(done.stdout)["purchases"]
        pools = [] if step.name == "submit-batch-load" else [run.pool.name]
        assert bought["pools"] == pools


def test_the_batch_is_loaded_from_what_was_put_into_the_bucket_and_after_the_gang(run: steps.Run) -> None:
    order = [step.name for step in steps.proof(EXAMPLE, run)]
    wanted = [
        "deploy",
        "dataset",
        "platform",
        "receipt-train-gang",
        "submit-batch-load",
        "loaded",
        "submit-batch-drain",
    ]
    assert all(order.index(one) < order.index(other) for one, other in pairwise(wanted))
    copied = next(step for step in steps.proof(EXAMPLE, run) if step.name == "dataset").command
    assert dataset.write(run.folder) == Path(copied[3]) and copied[4] == f"gs://{EXAMPLE.bucket('data')}/"
    rows = Path(copied[3]).read_text().splitlines()
    assert len(rows) == dataset.ITEMS and json.loads(rows[-1])["id"] == str(dataset.ITEMS - 1)
    text = (run.samples / EXAMPLE.name / "samples" / steps.LOADER.file).read_text()
    assert f"/data/{dataset.FILE}" in text
