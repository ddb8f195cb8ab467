"""The batch example on the real vLLM: as its job file starts it, and killed in the middle."""

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from holdfast.inference import examples
from holdfast.inference.examples.vllm_predictor import MAX_TOKENS
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.jobs.file.formats import DATA
from holdfast.jobs.submit import prepared_job
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE
from tests.platforms import with_images
from workloads.library.tests.inference.harness import load_json_lines
from workloads.library.tests.inference.server.serving import ROOT
from workloads.library.tests.inference.test_commands import query_status, run_command
from workloads.library.tests.llm.pods import VARIABLES, Process
from workloads.library.tests.processes import until

# vLLM loads twice.
pytestmark = [pytest.mark.llm, pytest.mark.timeout(3600)]
FILE = Path(examples.__path__[0]) / "vllm_predictor.yaml"
MODEL = "/mnt/models/llama"
PROMPTS = 24
SETTINGS = ("--set", "micro_batch=4", "--set", "lease_s=5")
PATIENCE_S = 600.0


def read_commands() -> tuple[list[str], list[str]]:
    """Returns the commands that enqueue the prompts and that work on them."""
    # The results database is the queue: no Pub/Sub is here.
    document = YAML(typ="safe").load(FILE.read_text()) | {"lane": 0}
    bodies = prepared_job.read_job(document, FILE, with_images("example")).bodies
    pod = bodies[-1]["spec"]["template"]["spec"]
    load = next(entry for entry in pod["initContainers"] if entry["name"] == "load")
    (worker,) = pod["containers"]
    return load["command"], worker["command"]


@contextmanager
def running_worker(words: list[str], home: Path, folder: Path, uri: str) -> Generator[Process]:
    """Runs a worker by the Python of vLLM's environment, as the image of the job does."""
    variables = {
        **VARIABLES,
        # Its kernels need a GPU, and compiling takes minutes of two cores.
        "VLLM_BATCH_INVARIANT": "0",
        "TORCH_COMPILE_DISABLE": "1",
        "HOLDFAST_DATABASE_URL": uri,
        "HOME": str(folder),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "workloads" / "library"),
    }
    process = Process(
        command=[str(home / "bin" / "python"), *words],
        variables=variables,
        log=folder / "worker.log",
    )
    try:
        yield process
    finally:
        process.kill()


def test_every_prompt_is_answered_once_after_a_kill(
    server: EmbeddedPostgres, home: Path, model: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    names = {f"{number:03d}.txt" for number in range(PROMPTS)}
    for number, name in enumerate(sorted(names)):
        (prompts / name).write_text(f"w{number} w{number + 1}")
    local_paths = {DATA: str(prompts), MODEL: str(model)}

    def localize(command: list[str]) -> list[str]:
        assert command[:4] == ["python", "-m", "holdfast", "batch"]
        return [local_paths.get(word, word) for word in command[1:]]

    load, work = read_commands()
    run_command(*localize(load)[3:], uri=server.uri)
    words = localize(work)
    job = words[words.index("run") + 1]
    log = tmp_path / "worker.log"

    def count_done() -> int:
        return query_status(server.uri, job)["done"]

    with running_worker([*words, *SETTINGS], home, tmp_path, server.uri) as process:
        until(
            count_done,
            lambda: log.read_text()[-4000:],
            alive=process.is_alive,
            within_s=PATIENCE_S,
            pause_s=0.2,
        )
    assert 0 < count_done() < PROMPTS
    with running_worker([*words, *SETTINGS], home, tmp_path, server.uri) as process:
        try:
            code = process.child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(log.read_text()[-4000:])
        assert code == EXIT_COMPLETE
    export = tmp_path / "out.jsonl"
    run_command("export", job, "--out", export, uri=server.uri)
    rows = load_json_lines(export)
    assert len(rows) == PROMPTS
    assert {row["item"] for row in rows} == names
    for row in rows:
        assert row["finished"] == ("length" if row["tokens"] == MAX_TOKENS else "stop")
        assert len(row["text"].split()) <= row["tokens"] <= MAX_TOKENS
