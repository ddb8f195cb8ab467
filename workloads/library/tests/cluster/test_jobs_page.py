"""The page of an ML engineer, in a folder that holds nothing but a kubeconfig, with the library as
pip installs it.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_kubernetes.providers.base import AClusterManager

from holdfast.clients.api import Api
from holdfast.manifests.render_context import RenderContext
from tests import platforms, support
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import World
from tests.cluster.test_platform import gke_kinds as gke_kinds
from tests.cluster.test_platform import platform_cleanup as platform_cleanup
from workloads.library.tests.cluster.test_first_job_page import _let_it_end, commands, ran
from workloads.library.tests.cluster.test_first_job_page import jobs_end as jobs_end
from workloads.operators import platform

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[4]
PAGE = ROOT / "workloads/library/docs/how-to/run-a-job.md"
EXAMPLE = platforms.with_images("example")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns bin/ of a virtual environment with `holdfast-gke[jobs]` and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    words = [sys.executable, ROOT / ".ci/wheel.py", "--wheel-only", "--out-dir", folder]
    subprocess.run(words, check=True, capture_output=True)
    (wheel,) = folder.glob("holdfast_gke-*.whl")
    # as pip installs it, in a tenth of its time
    uv = support.bootstrap().find_uv()
    env = folder / "env"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, env], check=True)
    install = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        env / "bin/python",
        f"{wheel}[jobs]",
    ]
    done = subprocess.run(
        install,
        capture_output=True,
        text=True,
        check=False,
    )
    support.require(
        done.returncode == 0, f"the package index cannot be reached: {done.stderr[-300:]}"
    )
    return env / "bin"


@pytest.mark.usefixtures("kueue", "gke_kinds", "platform_cleanup", "jobs_end")
def test_five_commands_and_a_kubeconfig_run_a_job(
    environment: Path,
    tmp_path: Path,
    cluster: AClusterManager,
    api: Api,
    world: World,
) -> None:
    list(platform.apply(api, RenderContext(EXAMPLE)))
    world.add_nodes(EXAMPLE.pool("spot-l4-g2-standard-8"), 1)
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copy(str(cluster.kubeconfig), folder / "kubeconfig")
    kept = {}
    for key, value in os.environ.items():
        if not key.startswith(("HOLDFAST", "PYTHON")):
            kept[key] = value
    path = os.pathsep.join([str(environment), os.environ["PATH"]])
    variables = kept | {
        "PATH": path,
        "KUBECONFIG": "kubeconfig",
        "PYTHONUNBUFFERED": "1",
    }

    def watch(text: str) -> None:
        """Plays what the cluster does while a reader of the line waits."""
        if text.startswith("Running"):
            _let_it_end(api)

    # Commands of a batch need the database of its queue.
    # Commands of ratings need Cloud Logging.
    prefixes = ("holdfast batch", "mkdir", "gcloud", "holdfast report")
    sources: list[str] = []
    lines: list[str] = []
    for line in commands(PAGE.read_text()):
        if line.startswith(prefixes):
            continue
        if "--source" in line:
            sources.append(line)
        else:
            lines.append(line)
    (sourced,) = sources
    install, *typed = lines
    assert install == 'pip install "$(ls holdfast_gke-*.whl)[jobs]"'
    assert len(typed) == 8
    controls = typed[4:]
    del typed[4:]
    # Before the page's own line, a limit below the job's price: the command refuses.
    typed.insert(1, "holdfast submit my-run.yaml --max-usd-per-hour 0.01; [ $? = 4 ]")
    written, refused, sent = [ran(line, folder, variables, watch) for line in typed[:3]]
    logged, stopped, resumed, entered = [
        _run_when_it_runs(line, folder, variables, api) for line in controls
    ]
    assert "a simulated pod" in logged
    assert re.search(r"stopped my-run-\w+\n", stopped)
    assert re.search(r"resumed my-run-\w+\n", resumed)
    assert "Mounted on" in entered
    followed, listed = [ran(line, folder, variables, watch) for line in typed[3:]]
    assert "wrote my-run.yaml" in written
    assert "over the cap of $0.01" in refused
    assert "applied" not in refused
    assert re.search(r"applied Job(Set)?/my-run", sent)
    assert "Complete" in followed
    assert "on demand $" in followed
    assert "my-run" in listed
    assert set(folder.iterdir()) == {folder / "kubeconfig", folder / "my-run.yaml"}

    # The code of a folder runs without an image for it.
    (folder / "code").mkdir()
    (folder / "code/train.py").write_text("print('hello')\n")
    line = sourced.replace("my-run", "code-run").replace("--source .", "--source code")
    assert "wrote code-run.yaml" in ran(line, folder, variables, watch)
    sent = ran(
        "holdfast submit code-run.yaml --yes",
        folder,
        variables,
        watch,
    )
    (name,) = re.findall(r"applied ConfigMap/(source-\w+)", sent)
    config_map = api.get(f"/api/v1/namespaces/training/configmaps/{name}")
    (owner,) = config_map["metadata"]["ownerReferences"]
    assert owner["name"].startswith("code-run")
    assert config_map["immutable"]
    job = api.get(f"/apis/batch/v1/namespaces/training/jobs/{owner['name']}")
    volumes = job["spec"]["template"]["spec"]["volumes"]
    assert name in [volume.get("configMap", {}).get("name") for volume in volumes]


def _run_when_it_runs(line: str, folder: Path, variables: dict[str, str], api: Api) -> str:
    """Runs a command once the job has a running pod; `resume` once it has none."""
    pods = "/api/v1/namespaces/training/pods"

    def is_settled() -> bool:
        if " resume " in line:
            return not list(api.items(pods))
        return any(pod["status"].get("phase") == "Running" for pod in api.items(pods))

    until(f"it is time for {line}", is_settled)
    return ran(line, folder, variables, lambda _: None)
