"""Tests of the example predictors: started as by their job files, and killed in a batch."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from ruamel.yaml import YAML

from holdfast.inference import examples
from holdfast.inference.results.embedded_postgres import EmbeddedPostgres
from holdfast.jobs.file.formats import DATA
from holdfast.jobs.submit import prepared_job
from holdfast.vocabulary.exit_codes import EXIT_COMPLETE
from tests.platforms import with_images
from workloads.library.tests.inference.harness import load_json_lines
from workloads.library.tests.inference.test_commands import query_status, run_command
from workloads.library.tests.inference.test_worker_signals import count_events
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
EXAMPLES = Path(examples.__path__[0])
KILLED = sorted(path for path in EXAMPLES.glob("*.py") if path.stem != "__init__")
MODEL = "/mnt/models/llama"
PROMPTS = 100


@pytest.mark.parametrize("example", KILLED, ids=lambda path: path.stem)
def test_every_prompt_is_answered_once_after_a_kill(
    server: EmbeddedPostgres,
    tmp_path: Path,
    workers: Callable[..., "subprocess.Popen[bytes]"],
    example: Path,
) -> None:
    file = example.with_suffix(".yaml")
    # The results database is the queue: no Pub/Sub is here.
    document = YAML(typ="safe").load(file.read_text()) | {"lane": 0}
    job_file = prepared_job.read_job(document, file, with_images("example"))
    pod = job_file.bodies[-1]["spec"]["template"]["spec"]
    prompts = tmp_path / "prompts"
    model = tmp_path / "model"
    site = tmp_path / "site"
    events = tmp_path / "e.jsonl"
    for folder in (prompts, model, site):
        folder.mkdir()
    texts = {}
    for n in range(PROMPTS):
        texts[f"{n:03d}.txt"] = f"prompt {n}"
    for name, text in texts.items():
        (prompts / name).write_text(text)
    (model / "config.json").write_text("{}")
    (site / "vllm.py").symlink_to(Path(__file__).with_name("vllm.py"))
    local_paths = {
        DATA: str(prompts),
        MODEL: str(model),
    }

    def localize(container: dict[str, list[str]]) -> list[str]:
        assert container["command"][:4] == ["python", "-m", "holdfast", "batch"]
        return [local_paths.get(word, word) for word in container["command"][4:]]

    (worker_container,) = pod["containers"]
    containers = {container["name"]: container for container in pod["initContainers"]}
    verb, job, *options = localize(worker_container)
    assert verb == "run"
    run_command(
        *localize(containers["load"]),
        uri=server.uri,
    )
    arguments = (job, *options, "--set", "lease_s=2", "--events-file", events)

    hold = model.with_name("hold")
    hold.touch()
    worker = workers(*arguments, PYTHONPATH=str(site))
    until(lambda: count_events(events, "stored"))
    children = psutil.Process(worker.pid).children()
    worker.send_signal(signal.SIGKILL)
    _, survivors = psutil.wait_procs(children, timeout=60)
    assert children
    assert not survivors, "the predicting process ends with its worker"
    assert 0 < query_status(server.uri, job)["done"] < PROMPTS
    hold.unlink()
    assert workers(*arguments, PYTHONPATH=str(site)).wait(200) == EXIT_COMPLETE
    export = tmp_path / "out.jsonl"
    run_command("export", job, "--out", export, uri=server.uri)
    rows = load_json_lines(export)
    assert len(rows) == PROMPTS
    for row in rows:
        prompt = texts.pop(row["item"])
        assert row["text"] == prompt[::-1]
        assert row["tokens"] == len(prompt)
        assert row["finished"] == "stop"
