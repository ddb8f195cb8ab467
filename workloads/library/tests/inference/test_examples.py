"""The examples of predictors, as the pods of their job files start them, killed in the middle of
the batch.
"""

import json
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
from workloads.library.tests.inference.test_commands import run_command, status_of
from workloads.library.tests.inference.test_worker_signals import count_events
from workloads.library.tests.processes import until

pytestmark = pytest.mark.process
EXAMPLES = Path(examples.__path__[0])
KILLED = sorted(path for path in EXAMPLES.glob("*.py") if path.stem != "__init__")
MODEL = "/mnt/models/llama"
PROMPTS = 100


@pytest.mark.parametrize("example", KILLED, ids=lambda path: path.stem)
def test_a_worker_is_killed_and_every_prompt_is_answered_once(
    server: EmbeddedPostgres,
    tmp_path: Path,
    workers: Callable[..., "subprocess.Popen[bytes]"],
    example: Path,
) -> None:
    file = example.with_suffix(".yaml")
    job_file = prepared_job.read_job(
        YAML(typ="safe").load(file.read_text()), file, with_images("example")
    )
    pod = job_file.bodies[-1]["spec"]["template"]["spec"]
    prompts, model, standing_in, events = (
        tmp_path / name for name in ("prompts", "model", "site", "e.jsonl")
    )
    for folder in (prompts, model, standing_in):
        folder.mkdir()
    texts = {f"{n:03d}.txt": f"prompt {n}" for n in range(PROMPTS)}
    for name, text in texts.items():
        (prompts / name).write_text(text)
    (model / "config.json").write_text("{}")
    (standing_in / "vllm.py").symlink_to(Path(__file__).with_name("vllm.py"))
    here = {
        DATA: str(prompts),
        MODEL: str(model),
    }

    def words(container: dict[str, list[str]]) -> list[str]:
        assert container["command"][:4] == ["python", "-m", "holdfast", "batch"]
        return [here.get(each, each) for each in container["command"][4:]]

    (worker,) = pod["containers"]
    (load,) = (each for each in pod["initContainers"] if each["name"] == "load")
    run, job, *options = words(worker)
    assert run == "run"
    run_command(*words(load), uri=server.uri)

    def started() -> "subprocess.Popen[bytes]":
        return workers(
            job, *options, "--set", "lease_s=2", "--events", events, PYTHONPATH=str(standing_in)
        )

    hold = model.with_name("hold")
    hold.touch()
    killed = started()
    until(lambda: count_events(events, "stored"))
    children = psutil.Process(killed.pid).children()
    killed.send_signal(signal.SIGKILL)
    _, outlived = psutil.wait_procs(children, timeout=60)
    assert children and not outlived, "what predicts ends with its worker"
    assert 0 < status_of(server.uri, job)["done"] < PROMPTS
    hold.unlink()
    assert started().wait(200) == EXIT_COMPLETE
    out = tmp_path / "out.jsonl"
    run_command("export", job, "--out", out, uri=server.uri)
    rows = map(json.loads, out.read_text().splitlines())
    found = {row["item"]: (row["text"], row["tokens"], row["finished"]) for row in rows}
    assert found == {name: (text[::-1], len(text), "stop") for name, text in texts.items()}
