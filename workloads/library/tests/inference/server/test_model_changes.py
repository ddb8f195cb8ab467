"""A newer commit takes over while requests are answered; a damaged one never does; each answer names its commit."""

import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from holdfast.checkpoint import Checkpointer
from holdfast.contract.environment import ENV_KEY_FILE
from holdfast.contract.serving import OVER_BUDGET
from holdfast.training.model import ByteGPT, ModelConfig
from workloads.library.tests.inference.server.serving import Served, served, stepped
from workloads.library.tests.processes import alive, until

pytestmark = pytest.mark.process
CONFIG = ModelConfig(context=32, width=64, layers=2, heads=4)


def commit(url: Path, step: int) -> None:
    torch.manual_seed(step)
    model = ByteGPT(CONFIG)
    state: dict[str, Any] = {"model": model, "config": CONFIG.to_json()}
    with Checkpointer(str(url), state, run="r", every=1, keep=10) as ckpt, torch.no_grad():
        for parameter in model.parameters():  # what it resumed from is not what this step is to hold
            parameter.normal_(std=0.02)
        ckpt.tick(step)
        assert ckpt.wait(60)


def damage(url: Path, step: int) -> None:
    shard = max((url / f"r/step-{step:010d}").rglob("*.bin"), key=lambda path: path.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)


def step_of(server: Served) -> int:
    answer = server.infer("a document")
    assert answer.status == 200
    return int(answer.json["model_version"].split("step-")[1].split("/")[0])


def test_a_newer_commit_takes_over_by_itself_and_one_that_is_damaged_or_unsigned_never_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, key = tmp_path / "checkpoints", tmp_path / "key"
    key.write_text("k" * 64)
    monkeypatch.setenv(ENV_KEY_FILE, str(key))
    commit(url, 1)
    options = ("--checkpoints", str(url), "--run", "r", "--follow", "0.2")
    with served(tmp_path, *options, predictor="gpt", env={ENV_KEY_FILE: str(key)}) as server:
        assert step_of(server) == 1
        first = server.infer("a document").output("score")
        commit(url, 2)
        until(lambda: step_of(server) == 2, "step 2 to take over")
        assert server.infer("a document").output("score") != first
        commit(url, 3)
        until(lambda: step_of(server) == 3, "step 3 to take over")
        again = server.load(json.dumps({"parameters": {"step": 1}}).encode())
        assert again.json["model_version"].startswith("r/step-1/"), "an older one only when it is named"
        damage(url, 3)
        refused = server.load(json.dumps({"parameters": {"step": 3}}).encode())
        assert refused.status == 409
        assert b"step-1" in refused.body, "the one that stays is named"
        until(lambda: step_of(server) == 2, "the newest that verifies to take over")
        missing = server.load(json.dumps({"parameters": {"step": 99}}).encode())
        assert missing.status == 409 and step_of(server) == 2
        monkeypatch.delenv(ENV_KEY_FILE)
        commit(url, 4)
        refused = server.load(json.dumps({"parameters": {"step": 4}}).encode())
        assert refused.status == 409 and b"step-2" in refused.body, "nobody with the key wrote it"
        assert step_of(server) == 2
        assert server.metric('holdfast_server_swaps_total\\{outcome="refused"\\}') >= 2


def test_changes_under_load_lose_nothing_and_mix_nothing(tmp_path: Path) -> None:
    """Each answer holds the step that made it, three times over."""
    ended, seen, wrong = threading.Event(), set[int](), list[Any]()

    def ask(server: Served) -> None:
        while not ended.is_set():
            answer = server.infer("a", "b", "c")
            steps = set(answer.output("step")) if answer.status == 200 else set[int]()
            named = answer.json.get("model_version")
            if answer.status != 200 or {f"run/step-{n}/played" for n in steps} != {named}:
                wrong.append(answer)
            seen.update(steps)

    with stepped(tmp_path) as (server, step):
        clients = [threading.Thread(target=ask, args=(server,)) for _ in range(4)]
        for client in clients:
            client.start()
        for n in range(2, 5):
            until(lambda n=n: n - 1 in seen, f"answers of step {n - 1}")
            step.write_text(str(n))
            assert server.load().json["outcome"] == "taken"
        until(lambda: 4 in seen, "answers of the last step")
        step.write_text("damaged")
        assert server.load().status == 409
        step.write_text("4")
        assert server.load().json["outcome"] == "same"
        ended.set()
        for client in clients:
            client.join()
    assert wrong == []
    assert seen == {1, 2, 3, 4}


def test_a_notice_while_a_newer_model_loads_gives_it_up_and_answers_with_the_old_one(tmp_path: Path) -> None:
    """What loads would hold the drain to its last moment, and page for it."""
    with stepped(tmp_path) as (server, step):
        step.write_text("hangs")
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(server.load)
            until(step.with_suffix(".begun").exists, "the newer model to load")
            children = psutil.Process(server.process.pid).children()
            server.signal(signal.SIGTERM)
            assert loading.result().status == 503
        late = server.infer("a document")
        assert (late.status, late.output("step")) == (200, [1])
        assert server.load().status == 503, "a leaving server loads nothing more"
        assert server.ended() == 143
        until(lambda: not any(map(alive, children)), "both models to be gone")
        assert not any(OVER_BUDGET in line["message"] for line in server.lines())
