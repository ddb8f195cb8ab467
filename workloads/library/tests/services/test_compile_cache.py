"""Tests of the compile cache of a service: the rendered containers around the small engine.

What differs from a cluster is in `Replica`: a folder in place of the bucket and of /tmp, and the
small engine in place of vLLM, which plays the compilers.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.commands import app
from holdfast.drill.serving.fleet import free_port
from holdfast.inference.compile_cache.storing import list_files
from holdfast.lint.engine import Options, lint_texts
from holdfast.manifests.compile_cache import FETCH_S
from holdfast.services.file.service_file import ServiceSpec
from holdfast.services.plan import compile_cache
from holdfast.support.errors import InputError
from holdfast.vocabulary.environment import ENV_PLATFORM
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW
from holdfast.vocabulary.serving import (
    CACHE_FETCHER,
    CACHE_INCOMING,
    CACHE_UNTRIED,
    COMPILE_CACHE,
    COMPILER_FOLDERS,
    PORT,
)
from tests.platforms import with_images, write_document
from tests.workloads.manifests.rendered import option
from workloads.library.tests.inference.server.serving import ROOT, Client
from workloads.library.tests.processes import until
from workloads.library.tests.services import example_services

Object = dict[str, Any]
SERVICE = example_services.read("assistant")
URL = SERVICE.compile_cache


def find_pod(service: ServiceSpec, tier: str = "base") -> Object:
    bodies = example_services.render(service)
    body = example_services.find(bodies, "Deployment", f"{service.name}-{tier}")
    return body["spec"]["template"]["spec"]


def find_container(spec: Object, name: str) -> Object:
    containers = spec["initContainers"] + spec["containers"]
    return find_named(containers, name)


def find_named(entries: list[Object], name: str) -> Object:
    for entry in entries:
        if entry["name"] == name:
            return entry
    raise KeyError(name)


@dataclass(kw_only=True)
class Replica:
    folder: Path
    """Stands for /tmp, which the containers of a pod share."""
    bucket: Path
    """Stands for the bucket."""
    spec: Object = field(default_factory=lambda: find_pod(SERVICE))
    url: str = URL
    """The bucket's URL in the rendered commands."""

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.port = free_port()

    @property
    def cache(self) -> Path:
        return self.folder / "compiled"

    def adapt(self, word: str) -> str:
        """Returns a word of a command with the places of this machine."""
        word = word.replace(COMPILE_CACHE, str(self.cache)).replace(self.url, str(self.bucket))
        return word.replace(f":{PORT}/", f":{self.port}/")

    def read_command(self, name: str) -> list[str]:
        words = find_container(self.spec, name)["command"]
        options = [self.adapt(word) for word in words[1:]]
        return [sys.executable, *options]

    def fetch(self) -> str:
        """Runs the container that fills the caches; returns its log."""
        command = self.read_command(CACHE_FETCHER)
        process = subprocess.run(
            command,
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        return process.stdout + process.stderr

    def call_hook(self) -> None:
        """Does what the kubelet does when the engine starts."""
        main = find_container(self.spec, "main")
        hook = main["lifecycle"]["postStart"]["exec"]
        words = [self.adapt(word) for word in hook["command"]]
        subprocess.run(words, check=True, capture_output=True)

    @contextmanager
    def engine(self, model: str = "chat") -> Generator["subprocess.Popen[bytes]"]:
        """Runs the small engine with the variables of vLLM's container."""
        variables = dict(os.environ)
        entries = find_container(self.spec, "main")["env"]
        for name in COMPILER_FOLDERS:
            value = find_named(entries, name)["value"]
            variables[name] = self.adapt(value)
        command = [sys.executable, "-m", "holdfast.inference.small_engine"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--served-model-name", model]
        self.call_hook()
        with self._running(command, "engine", variables) as process:
            yield process

    @contextmanager
    def keeper(self) -> Generator["subprocess.Popen[bytes]"]:
        command = [*self.read_command("keep-compiled"), "--settle", "0.1"]
        with self._running(command, "keeper", os.environ) as process:
            yield process

    @contextmanager
    def _running(
        self, command: list[str], name: str, variables: Any
    ) -> Generator["subprocess.Popen[bytes]"]:
        with (self.folder / name).open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=variables,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def read_log(self, name: str) -> str:
        return (self.folder / name).read_text()

    def wait_for(self, name: str, text: str, process: "subprocess.Popen[bytes]") -> None:
        until(
            lambda: text in self.read_log(name),
            lambda: self.read_log(name),
            alive=lambda: process.poll() is None,
        )

    def start(self) -> str:
        """Runs the pod until its caches are stored.

        Returns the logs of the fetcher and the engine.
        """
        fetched = self.fetch()
        with ExitStack() as stack:
            stack.enter_context(self.engine())
            keeper = stack.enter_context(self.keeper())
            self.wait_for("keeper", "stored", keeper)
            assert Client(self.port).request("GET", "/health").status == 200
        return fetched + self.read_log("engine")


@pytest.fixture(scope="module")
def source_bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a bucket with what a first replica has compiled."""
    folder = tmp_path_factory.mktemp("first")
    first = Replica(folder=folder / "pod", bucket=folder / "bucket")
    logs = first.start()
    assert "nothing is stored" in logs
    assert "kernels compiled" in logs
    assert "files stored" in first.read_log("keeper")
    return first.bucket


@pytest.fixture
def replica(source_bucket: Path, tmp_path: Path) -> Replica:
    """Returns a later replica, with a copy of the bucket."""
    bucket = tmp_path / "bucket"
    shutil.copytree(source_bucket, bucket)
    return Replica(folder=tmp_path / "pod", bucket=bucket)


@pytest.mark.process
def test_a_later_replica_compiles_nothing(replica: Replica) -> None:
    assert "kernels loaded" in replica.start()
    assert "already stored" in replica.read_log("keeper")
    with replica.engine() as process:
        replica.wait_for("engine", "kernels loaded", process)


@pytest.mark.process
def test_page_commands_share_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Types the page's commands, without the bucket and the cluster."""
    _, written, sent = example_services.read_commands("gcloud storage buckets create gs://my-kern")
    document = write_document(with_images("example"), tmp_path / "document")
    monkeypatch.setenv(ENV_PLATFORM, str(document))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, written, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "gs://my-kernels --member=serviceAccount:" in result.stderr
    result = CliRunner().invoke(app, [*sent, "--dry-run"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    service = example_services.read_file(Path(sent[-1]))
    logs = []
    for name in ("first", "second"):
        replica = Replica(
            folder=tmp_path / name,
            bucket=tmp_path / "bucket",
            spec=find_pod(service),
            url="gs://my-kernels",
        )
        logs.append(replica.start())
    assert "kernels compiled" in logs[0]
    assert "kernels loaded" in logs[1]


@pytest.mark.process
def test_another_engine_reads_nothing(replica: Replica) -> None:
    replica.spec = find_pod(replace(SERVICE, context=4096))
    assert "nothing is stored" in replica.fetch()
    assert not list_files(replica.cache)


@pytest.mark.process
def test_damaged_archives_cost_one_line(replica: Replica) -> None:
    (part,) = replica.bucket.rglob("0000")
    part.write_bytes(part.read_bytes()[::-1])
    logs = replica.start()
    assert logs.count("not used, the engine compiles") == 1
    assert "kernels compiled" in logs


@pytest.mark.process
def test_kernels_that_end_the_engine_are_dropped_at_its_next_start(replica: Replica) -> None:
    replica.fetch()
    with replica.engine(model="another") as process:
        assert process.wait() != 0
    assert "of another model" in replica.read_log("engine")
    with replica.engine(model="another") as process:
        replica.wait_for("engine", "kernels compiled", process)


def test_a_hook_that_fails_does_not_end_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet would: `rm` fails where the engine writes at the same time."""
    programs = tmp_path / "programs"
    programs.mkdir()
    failing_rm = programs / "rm"
    failing_rm.write_text("#!/bin/sh\nexit 1\n")
    failing_rm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    replica = Replica(folder=tmp_path / "pod", bucket=tmp_path / "bucket")
    replica.call_hook()


def test_an_unfinished_fetch_leaves_nothing(tmp_path: Path) -> None:
    replica = Replica(folder=tmp_path / "pod", bucket=tmp_path / "bucket")
    (replica.cache / CACHE_UNTRIED).mkdir(parents=True)
    torn = replica.cache / CACHE_INCOMING / "triton"
    torn.mkdir(parents=True)
    (torn / "kernel.so").write_bytes(b"torn")
    replica.call_hook()
    assert not list(replica.cache.iterdir())


def test_keys_differ_where_kernels_may() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"image": "vllm@sha256:" + "1" * 64},
        {"model": "gs://acme-models/another"},
        {"context": 4096},
        {"options": ("--dtype", "float16")},
    ]
    keys: set[str] = set()
    for change in changes:
        spec = find_pod(replace(SERVICE, **change))
        fetcher = find_container(spec, CACHE_FETCHER)
        keys.add(option(fetcher["command"], "--key"))
    assert len(keys) == len(changes)


def test_both_tiers_and_both_containers_share_one_archive() -> None:
    places: set[tuple[str, str]] = set()
    for tier in ("base", "overflow"):
        spec = find_pod(SERVICE, tier)
        for name in (CACHE_FETCHER, "keep-compiled"):
            command = find_container(spec, name)["command"]
            url = option(command, "--url")
            key = option(command, "--key")
            places.add((url, key))
    ((url, _),) = places
    assert url == f"{URL}/serving/assistant", "a service has a folder of its own"


def test_fetching_ends_before_the_engine_starts() -> None:
    spec = find_pod(SERVICE)
    fetcher = spec["initContainers"][0]
    assert fetcher["name"] == CACHE_FETCHER
    assert "restartPolicy" not in fetcher
    assert option(fetcher["command"], "--within") == str(FETCH_S)
    keeper = find_container(spec, "keep-compiled")
    assert keeper["restartPolicy"] == "Always"
    assert spec["terminationGracePeriodSeconds"] == DEFAULT_WINDOW.pod_s


def test_without_a_bucket_nothing_is_rendered() -> None:
    spec = find_pod(replace(SERVICE, compile_cache=""))
    names = [container["name"] for container in spec["initContainers"]]
    assert names == ["drain"]
    main = find_container(spec, "main")
    assert "postStart" not in main["lifecycle"]
    assert not COMPILER_FOLDERS.keys() & {variable["name"] for variable in main["env"]}


def test_the_linter_finds_nothing() -> None:
    platform = with_images("example")
    text = example_services.text(platform.name, example_services.render(SERVICE))
    report = lint_texts({"assistant.yaml": text}, Options(platforms=[platform]))
    assert not report.findings


def test_folders_in_which_others_write_are_refused() -> None:
    platform = with_images("example")
    bucket = platform.buckets["checkpoints"]
    service = replace(SERVICE, compile_cache=f"gs://{bucket}/teams/vision")
    with pytest.raises(InputError) as caught:
        compile_cache.check(service, platform, "server@example")
    assert "others may write there" in caught.value.what
    assert "buckets create" in caught.value.fix


def test_grants_let_servers_create_and_not_replace() -> None:
    notes = compile_cache.check(SERVICE, with_images("example"), "server@example")
    text = "\n".join(notes)
    assert "serviceAccount:server@example" in text
    assert "objectCreator" in text
    assert "objectUser" not in text
    assert "can run code in the servers" in text
