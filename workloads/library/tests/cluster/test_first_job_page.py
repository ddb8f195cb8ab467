"""The page "from nothing to your first job": every command line of it, in its order, as a shell
runs it.

The control plane is real and new. Simulated are the builder of images, the registry, gcloud, and
the machines, which are simulated; the operators' pods are processes of this host, started when
their Deployment is there.
"""

import os
import pty
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.clients.api import Api
from tests import platforms
from tests.cluster.sim import control_plane, flex, nodes, operators, pods
from tests.cluster.sim.control_plane import ControlPlane
from tests.cluster.sim.waiting import until
from tests.cluster.sim.world import end_jobs
from tests.cluster.test_platform import gke_kinds as gke_kinds
from tests.infra.ops.google import Gcloud
from tests.workloads.images.test_builds import DIGEST, Tools
from workloads.library.tests.cluster.objects import list_names
from workloads.operators.catalogue import OPERATORS

pytestmark = pytest.mark.timeout(1200)
ROOT = Path(__file__).parents[4]
PAGE = "workloads/library/docs/start/first-job.md"
MARK = "holdfast-page-"
EXAMPLE = platforms.load("example")
Watch = Callable[[str], object]


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane.running(*(operator.name for operator in OPERATORS)) as control:
        yield control


@pytest.fixture
def api(plane: ControlPlane) -> Api:
    return Api(plane.kubeconfig("admin"))


@pytest.fixture
def jobs_end(api: Api) -> Iterator[None]:
    """The pages keep their jobs; here they end with the test."""
    yield
    end_jobs(api)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copies this checkout: the commands write digests, a job file and manifests into it."""
    clone = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, clone], check=True)
    listed = ["git", "ls-files", "--modified", "--others", "--exclude-standard"]
    changed = subprocess.run(
        listed,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in changed:
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    (clone / ".venv").symlink_to(ROOT / ".venv")
    # Else `make` would set up the environment that runs this test.
    for name in ("requirements/dev.txt", ".ci/bootstrap.py"):
        os.utime(clone / name, (0, 0))
    return clone


@pytest.fixture
def variables(tmp_path: Path, plane: ControlPlane) -> dict[str, str]:
    """Returns the environment of a shell whose gcloud, docker and crane are ours, and whose
    kubeconfig is that of the new cluster.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    tools = Tools(folder)
    tools.add("docker")
    tools.add("crane", DIGEST)
    Gcloud(folder)
    folders = [str(ROOT / ".venv/bin"), str(folder), os.environ["PATH"]]
    path = os.pathsep.join(folders)
    kubeconfig = str(plane.kubeconfig("admin"))
    return os.environ | {
        "PATH": path,
        "KUBECONFIG": kubeconfig,
        "PYTHONUNBUFFERED": "1",
    }


def commands(text: str) -> list[str]:
    lines: list[str] = []
    for block in re.findall(r"```sh\n(.*?)```", text, re.S):
        lines += block.strip().splitlines()
    return lines


def ran(
    line: str,
    folder: Path,
    variables: dict[str, str],
    watch: Watch,
) -> str:
    """Returns what the line printed; every question is answered with yes."""
    terminal, stdin = pty.openpty()
    os.write(terminal, b"y\n")
    printed: list[str] = []
    try:
        with subprocess.Popen(
            ["bash", "-c", line],
            cwd=folder,
            env=variables,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout
            for text in process.stdout:
                printed.append(text)
                watch(text)
        assert process.returncode == 0, f"{line}: {''.join(printed)}"
    finally:
        os.close(terminal)
        os.close(stdin)
    return "".join(printed)


@pytest.mark.usefixtures("gke_kinds", "jobs_end")
def test_every_command_does_what_the_page_says(
    plane: ControlPlane,
    api: Api,
    checkout: Path,
    variables: dict[str, str],
) -> None:
    flex.install(api)
    pools = [("system", 2), ("spot-l4-g2-standard-8", 2)]
    fresh = []
    for name, count in pools:
        for n in range(count):
            fresh.append(nodes.node(EXAMPLE.pool(name), f"{name}-{n}"))
    nodes.add(api, fresh)
    until(
        "the nodes are ready",
        lambda: nodes.ready(api, list_names(fresh)),
    )

    def watch(text: str) -> None:
        """Plays what the cluster does while a reader of the line waits."""
        for operator in OPERATORS:
            if f"created Deployment/{operator.deployment}" in text:
                operators.install(operator, plane, api)
        if text.startswith("Running") and "evicted 1" in text:
            _let_it_end(api)

    printed: dict[str, str] = {}
    for line in commands((checkout / PAGE).read_text()):
        printed[line] = ran(line, checkout, variables, watch)
        if line.endswith(" --dry-run"):
            # As the page says: without it, the job is started.
            for command in (line.removesuffix(" --dry-run"), *AGAIN):
                printed[line] += ran(command, checkout, variables, watch)
    assert len(printed) >= 10, "the page has lost its commands"
    outcomes: dict[str, str] = {}
    for line, text in printed.items():
        for word in line.split():
            outcomes[word] = text
    for key, expected in HELD.items():
        assert re.search(expected, outcomes[key], re.S), f"{key}: {outcomes[key]}"
    assert (checkout / "my-run.yaml").exists()
    assert (checkout / "gitops/my-run.yaml").exists()


# A running job stays if the same file is submitted again. A changed file replaces it only with
# --replace; without, the command ends with 4.
AGAIN = (
    "holdfast submit my-run.yaml",
    (
        "sed 's/maxRestarts: 3/maxRestarts: 9/' gitops/my-run.yaml > other.yaml; holdfast submit"
        " other.yaml; [ $? = 4 ]"
    ),
    "sed -i s/epochs/rounds/ my-run.yaml; holdfast submit my-run.yaml; [ $? = 4 ]",
    "holdfast submit my-run.yaml --replace",
)
SENT = (
    r"wrote gitops/my-run.yaml",
    r"applied JobSet/my-run",
    r"runs already as the file says",
    r"maxRestarts|immutable",
    r"writes the same run, my-run",
    r"deletes my-run",
    r"applied JobSet/my-run",
)
# A word of the command line -> what its output holds.
HELD = {
    "operators-pin": rf"kueue:\S+@{DIGEST}",
    "operators": (
        r"jobset v\S+ \d+ of \d+ changed, it answers.*kueue v\S+ \d+ of \d+ changed, it answers"
    ),
    "images-base": rf"python:\S+@{DIGEST}",
    "images": rf"trainer:\S+@{DIGEST}",
    "apply": r"created Deployment/exporter.*nothing among them needs a GPU",
    "try": r"evicted \S+, as requested.*Complete\n.*with 1 evictions; on demand \$",
    "new-job": r"wrote my-run.yaml",
    "lint": "",
    "submit": ".*".join(f"({text})" for text in SENT),
    "explain": r"blocker",
}


def _let_it_end(api: Api) -> None:
    for pod in api.items("/api/v1/namespaces/training/pods"):
        if pod["status"].get("phase") == "Running":
            pods.end(api, pod)
