"""Images by role: what a Dockerfile copies and installs is all that its entry points import."""

import json
import re
import subprocess
import sys

import pytest

from holdfast.manifests.database import PROXY
from holdfast.manifests.serving_proxy import ENVOY
from holdfast.manifests.serving_vllm import VLLM
from infra.environments import names
from tests.workloads.manifests.rendered import ROOT, workloads

IMAGES = ROOT / "workloads/images"
ROLES = sorted(path.name.removesuffix(".Dockerfile") for path in IMAGES.glob("*.Dockerfile"))
# What the bodies of a role's commands import when they run.
ROOMS = {
    "trainer": ("holdfast.training", "holdfast.checkpoint", "holdfast.runtime"),
    "batch": ("holdfast.inference", "holdfast.checkpoint", "holdfast.runtime"),
    "exporter": ("holdfast.exporter",),
    "server": ("holdfast.inference.server", "holdfast.inference.proxy", "holdfast.inference.predictor"),
}
# For other people's frameworks and clouds, for tests, and for laptops.
NOT_IN_IMAGES = (
    "holdfast.checkpoint.stores.azure",
    "holdfast.checkpoint.stores.fsspec",
    "holdfast.checkpoint.stores.s3",
    "holdfast.training.frameworks",
    "holdfast.training.examples",
    "holdfast.inference.results.embedded_postgres",
    "holdfast.inference.queue.fake_broker_server",
)
INSIDE = """
import importlib, json, pkgutil, re, sys
from importlib.metadata import packages_distributions

given = json.loads(sys.argv[1])
owners = {top: {re.sub(r"[-_.]+", "-", d).lower() for d in dists} for top, dists in packages_distributions().items()}

class Image:
    @staticmethod
    def find_spec(name, path=None, target=None):
        top = name.partition(".")[0]
        if top in ("infra", "workloads", "monitoring", "tests"):
            copied = any(name == p or name.startswith(p + ".") or p.startswith(name + ".") for p in given["copied"])
        else:
            copied = top not in owners or bool(owners[top] & set(given["installed"]))
        if not copied:
            raise ModuleNotFoundError(f"{name} is not in the image", name=name)

sys.meta_path.insert(0, Image)
sys.path.insert(0, given["root"])
for room in given["rooms"]:
    package = importlib.import_module(room)
    for found in pkgutil.walk_packages(package.__path__, room + "."):
        if not found.name.startswith(tuple(given["left_out"])):
            importlib.import_module(found.name)
            print(found.name)
"""


def dockerfile(role: str) -> str:
    return (IMAGES / f"{role}.Dockerfile").read_text()


def installed(role: str) -> list[str]:
    """Distributions of the one group that the image installs."""
    (group,) = re.findall(r"^COPY requirements/(\w+)\.txt ", dockerfile(role), re.MULTILINE)
    lock = (ROOT / "requirements" / f"{group}.txt").read_text()
    return [re.sub(r"[-_.]+", "-", name).lower() for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)]


def copied(role: str) -> list[str]:
    """Packages of ours in the image."""
    paths = re.findall(r"^COPY (infra|workloads|monitoring)(\S*) ", dockerfile(role), re.MULTILINE)
    return [".".join((top + rest).removesuffix("/__init__.py").split("/")) for top, rest in paths]


def import_all(role: str, rooms: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    given = {"root": str(ROOT), "installed": installed(role), "copied": copied(role), "rooms": rooms}
    command = [sys.executable, "-I", "-c", INSIDE, json.dumps(given | {"left_out": NOT_IN_IMAGES})]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_every_image_that_a_pod_runs_has_a_dockerfile() -> None:
    used = {
        container["image"].partition("@")[0].rpartition("/")[2]
        for env in names()
        for _, template in workloads(env)
        for container in [*template["spec"]["containers"], *template["spec"].get("initContainers", ())]
    }
    assert used == {*ROLES, PROXY, ENVOY, VLLM}
    assert set(ROOMS) == set(ROLES)


@pytest.mark.parametrize("role", ROLES)
def test_an_image_is_pinned_unprivileged_and_gets_its_signals(role: str) -> None:
    text = dockerfile(role)
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert bases and set(bases) == {"${BASE}"}, "a base with a tag of its own would move"
    assert "--require-hashes" in text and "--only-binary :all:" in text
    assert re.search(r"^USER 65532:65532$", text, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["python", "-m", ', text, re.MULTILINE), "a shell would keep SIGTERM to itself"


@pytest.mark.parametrize("role", ROLES)
def test_an_image_names_its_commit_repeats_bit_by_bit_and_tries_its_command(role: str) -> None:
    text = dockerfile(role)
    assert "LABEL org.opencontainers.image.revision=${REVISION} dev.holdfast.lock=${LOCK}" in text
    assert text.count("ARG SOURCE_DATE_EPOCH") == text.count("FROM ${BASE}") == 2, "bytecode by hash in both stages"
    assert "--mount=type=secret,id=pip" in text and "--mount=type=secret,id=ca" in text
    tried = re.findall(r"^RUN python -m (holdfast|monitoring) .+ --help > /dev/null$", text, re.MULTILINE)
    assert len(tried) == 1 and text.index("USER 65532:65532") < text.index("--help > /dev/null")


@pytest.mark.parametrize("role", ["trainer", "batch", "server"])
def test_an_image_that_computes_finds_the_driver_where_gke_mounts_it(role: str) -> None:
    variables = re.findall(r"^ENV (.+)$", dockerfile(role), re.MULTILINE)
    assert any("LD_LIBRARY_PATH=/usr/local/nvidia/lib64" in line.split() for line in variables)
    assert any(re.search(r"\bPATH=\S*:/usr/local/nvidia/bin\b", line) for line in variables), "nvidia-smi"


@pytest.mark.parametrize("role", ROLES)
def test_no_image_asks_for_every_gpu_of_its_machine(role: str) -> None:
    assert not re.search(r"^[^#\n]*NVIDIA_VISIBLE_DEVICES", dockerfile(role), re.MULTILINE)


def test_a_builder_is_sent_sources_and_locks_only() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*", "whatever is not named stays out"
    allowed = [line[1:] for line in lines if line.startswith("!")]
    copies = {path for role in ROLES for path in re.findall(r"^COPY (?!--from)(\S+) ", dockerfile(role), re.MULTILINE)}
    assert copies and all(any(path.startswith(known) for known in allowed) for path in copies), copies
    assert {"**/*.tfstate*", "**/.env*"} <= set(lines)


@pytest.mark.process
@pytest.mark.parametrize("role", ROLES)
def test_what_the_entry_points_import_is_in_the_image(role: str) -> None:
    done = import_all(role, ROOMS[role])
    assert done.returncode == 0, done.stderr[-1500:]
    assert len(done.stdout.split()) >= 4


@pytest.mark.process
def test_an_import_of_another_group_would_be_seen() -> None:
    """Else the test above could not fail."""
    assert "is not in the image" in import_all("exporter", ("holdfast.training",)).stderr
    assert "torch" not in installed("exporter") and "psycopg" not in installed("trainer")


@pytest.mark.process
def test_every_rendered_command_is_one_that_its_command_line_understands() -> None:
    """An unknown option is refused even when help is asked for."""
    commands = {
        tuple(container["command"])
        for env in names()
        for _, template in workloads(env)
        for container in [*template["spec"]["containers"], *template["spec"].get("initContainers", ())]
        if container.get("command", [ENVOY])[0]
        not in (ENVOY, VLLM)  # not ours; tests/workloads/drill starts Envoy with this
    }
    by_shape = {(*words[2:5], *(word for word in words if word.startswith("--"))): words for words in commands}
    assert len(by_shape) >= 5
    for words in by_shape.values():
        assert words[:2] == ("python", "-m")
        command = [sys.executable, *words[1:], "--help"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0 and "Usage" in done.stdout, f"{words}: {done.stderr}"
