"""The five commands from an empty cluster to a receipt, in order: operators, images, platform,
database, own job.

Real API server, JobSet, Kueue and kubelets, images that were built here, a real PostgreSQL.
Google's own parts are simulated: registry, bucket, proxy of the database. Of what is rendered
only the size of the own job is changed.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from holdfast.clients.api import Api
from holdfast.commands import app
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.jobs.submit import prepared_job
from holdfast.jobs.submit.follower import Following
from holdfast.jobs.submit.prepared_job import Prepared
from holdfast.manifests.render_context import RenderContext
from holdfast.platform import codec
from holdfast.vocabulary.kubernetes import LABEL_NAME
from holdfast.vocabulary.pools import GPU_RESOURCE
from holdfast.vocabulary.roles import NAMESPACE_BATCH
from tests import platforms
from tests.cluster.sim import flex, operators
from tests.cluster.sim.waiting import until
from tests.cluster.test_platform import gke_kinds as gke_kinds
from workloads.library.tests.inference.results.test_rights import server as server
from workloads.library.tests.node.lab import google
from workloads.library.tests.node.lab.as_rendered import SIZE, SMALL
from workloads.library.tests.node.lab.images import Rendered
from workloads.library.tests.node.lab.lab import Lab
from workloads.operators import platform

EXAMPLE = platforms.load("example")
BELOW = f"{EXAMPLE.default_run}/"  # where runs that no environment lists save
STRANGERS = Path(__file__).parent / "strangers"
EVENTS = Path("events")
"""Folder below the test's own, with the pods that were noted as evicted, and why."""
NAME = "theirs"
LOOP = "loop"
STEPS = 400
SAVED = 40
LIMIT_S = 420

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture
def empty(lab: Lab) -> Iterator[Lab]:
    """Yields a cluster of its own, so that what the platform applies affects no other test.

    `lab` makes sure that the host can run one.
    """
    empty_lab = Lab(beside=lab)
    yield empty_lab
    empty_lab.close()


@pytest.fixture
def api(empty: Lab) -> Api:
    return empty.api


@pytest.mark.usefixtures("gke_kinds")
def test_own_job_from_an_empty_cluster_to_its_receipt(
    empty: Lab,
    rendered: Rendered,
    server: EmbeddedPostgres,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    flex.install(empty.api)
    for operator in (operators.JOBSET, operators.KUEUE):
        operators.install(operator, empty.plane, empty.api)
    place = EXAMPLE.registry.partition("/")[2]
    proxy = rendered.builder.stranger(
        f"{place}/cloud-sql-proxy:v1", STRANGERS / "cloud_sql_proxy.py"
    )
    theirs = rendered.builder.stranger("them/train:v1", STRANGERS / "train.py")
    empty.pull(rendered.registry.host, rendered.images("batch", "exporter", "trainer"))
    # No node here has a driver, so nothing pulls the exporter of GPU faults.
    digests = rendered.digests | {"cloud-sql-proxy": proxy, "dcgm-exporter": proxy}
    # As `describe` writes it once the images are pinned.
    pinned = replace(
        EXAMPLE, images={name: digest.removeprefix("sha256:") for name, digest in digests.items()}
    )
    document = tmp_path / "platform.json"
    document.write_text(codec.text(pinned))
    context = RenderContext(pinned)
    verbs = {change.verb for change in platform.apply(empty.api, context)}
    assert verbs == {"created"}
    assert {change.verb for change in platform.apply(empty.api, context)} == {"unchanged"}
    with (
        google.database(empty.bridge.address, server.uri),
        google.bucket(empty, EXAMPLE.buckets["checkpoints"]) as storage,
    ):
        empty.boot("system-a", EXAMPLE.pool("system"))
        until("the migration is complete", lambda: is_migrated(empty.api), LIMIT_S)
        image = f"{rendered.registry.host}/them/train@{theirs}"
        prepared = write_job(
            document, NAME, image, storage, ["python", "/app/train.py", str(STEPS)]
        )
        assert (
            follow(
                empty,
                prepared,
                lambda: storage.read(f"{BELOW}{NAME}/state.json").get("step", 0) >= SAVED,
            )
            == 0
        )
        state = storage.read(f"{BELOW}{NAME}/state.json")
        assert state == {
            "step": STEPS,
            "weights": compute_reference_weights(),
            "starts": 2,
        }
        assert "1 evictions; on demand $" in capsys.readouterr().out
        loop = [
            "python",
            "-c",
            (STRANGERS / "loop.py").read_text(),
            str(STEPS),
        ]
        prepared = write_job(document, LOOP, "trainer", storage, loop)
        assert follow(empty, prepared, lambda: bool(storage.names(f"{BELOW}{LOOP}/"))) == 0
        match = re.search(
            r"by 1 evictions; .*; useful ([0-9.]+) % of its time, (no|\d+) steps? lost",
            out := capsys.readouterr().out,
        )
        assert match and 0 < float(match[1]) < 100, (
            out,
            (EVENTS / LOOP / "follower.jsonl").read_text(),
        )


def is_migrated(api: Api) -> bool:
    jobs = api.items(
        f"/apis/batch/v1/namespaces/{NAMESPACE_BATCH}/jobs", labelSelector=f"{LABEL_NAME}=migrate"
    )
    conditions = []
    for job in jobs:
        for condition in job["status"].get("conditions", ()):
            conditions.append(condition["type"])
    assert "Failed" not in conditions
    return "Complete" in conditions


def write_job(
    document: Path,
    name: str,
    image: str,
    storage: google.Bucket,
    command: list[str],
) -> Prepared:
    """Writes a job by `new-job`, for an image by digest or role, and reads it as `submit` does."""
    words = [
        "new-job",
        name,
        "--platform",
        str(document),
        "--image",
        image,
    ]
    words += ["--gpus", "1xl4", "--capacity", "spot"]
    options = [
        "--set",
        f"env.STORAGE_EMULATOR_HOST={storage.url}",
        "--",
        *command,
    ]
    done = CliRunner().invoke(app, [*words, *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    path = Path(f"{name}.yaml")
    dry = [
        "submit",
        str(path),
        "--dry-run",
        "--write",
        "gitops",
        "--platform",
        str(document),
    ]
    dry_run = CliRunner().invoke(app, dry, catch_exceptions=False)
    assert dry_run.exit_code == 0, dry_run.output
    linted = CliRunner().invoke(app, ["lint", "gitops"], catch_exceptions=False)
    assert linted.exit_code == 0, linted.output
    return smaller(
        prepared_job.read_job(YAML(typ="safe").load(path.read_text()), path, codec.read(document))
    )


def smaller(prepared: Prepared) -> Prepared:
    """Shrinks the job to machines of this size; it still asks for the GPU."""
    for body in prepared.bodies:
        if body["kind"] == "Job":
            (container,) = body["spec"]["template"]["spec"]["containers"]
            gpu = {GPU_RESOURCE: "1"}
            container["resources"] = {"limits": SIZE | gpu, "requests": SMALL | gpu}
    return prepared


def follow(lab: Lab, prepared: Prepared, saved: Callable[[], bool]) -> int:
    """Submits and follows a job by the platform's own code; a Spot shutdown takes its first machine
    away.
    """
    pool = EXAMPLE.pool("spot-l4-g2-standard-8")
    machines = [lab.boot(f"{prepared.job.name}-a", pool, gpu=True)]

    def report(line: str) -> None:
        if line.startswith("Running") and len(machines) == 1:
            until("it has saved", saved, LIMIT_S)
            assert lab.preempt(machines[0]), "the kubelet gave its lock back within the window"
            machines.append(lab.boot(f"{prepared.job.name}-b", pool, gpu=True))

    code = prepared_job.follow(
        lab.api, prepared, Following(timeout_s=LIMIT_S, events=EVENTS / prepared.job.name), report
    )
    lab.forget(machines[-1])
    return code


def compute_reference_weights() -> str:
    """Computes what the script ends with if nothing interrupts it."""
    weights = ""
    for step in range(1, STEPS + 1):
        weights = hashlib.sha256(f"{weights}{step}".encode()).hexdigest()
    return weights
