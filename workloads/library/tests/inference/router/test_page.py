"""The page of the router: its commands run, and its tables name what the code knows."""

import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from holdfast.drill.serving.fleet import free_port
from holdfast.inference.router.settings import RouterSettings
from holdfast.vocabulary.serving import ROUTER_METRICS
from workloads.library.tests.inference.router.fleet import count_ready, make_text, metric
from workloads.library.tests.inference.server.serving import PATIENCE_S, ROOT, Client
from workloads.library.tests.processes import kill_family, until

PAGE = (ROOT / "workloads/library/docs/how-to/route-text-streams.md").read_text()
START, REQUEST = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
PORTS = ("8001", "8002", "8090")


@pytest.mark.process
def test_the_commands_on_the_page_run_and_the_text_goes_on(tmp_path: Path) -> None:
    ports = {port: str(free_port()) for port in PORTS}
    pattern = re.compile("|".join(PORTS))

    def localize(commands: str) -> str:
        return pattern.sub(lambda match: ports[match[0]], commands)

    # `wait` keeps the shell, so that its children can be found and ended.
    script = localize(START) + "wait\n"
    shell = subprocess.Popen(["bash", "-c", script], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        router = Client(int(ports["8090"]))
        until(lambda: _count_ready(router) == 2, "two ready servers", within_s=300)
        answer_path = tmp_path / "answer"
        with answer_path.open("wb") as answer:
            curl = subprocess.Popen(["bash", "-c", localize(REQUEST)], stdout=answer)
        engines = []
        for port in PORTS[:2]:
            engines.append(Client(int(ports[port])))
        until(lambda: any(map(_is_writing, engines)), "a stream")
        busy = next(engine for engine in engines if _is_writing(engine))
        _find_process(shell.pid, busy.port).send_signal(signal.SIGKILL)
        assert curl.wait(PATIENCE_S) == 0
        assert metric(router, "holdfast_router_moved_total", 'cause="died"') == 1
    finally:
        kill_family(shell.pid)
        shell.wait()
    content = answer_path.read_text()
    texts = re.findall(r'"text":"(.*?)","logprobs"', content)
    assert "".join(texts).replace("\\n", "\n") == make_text("hello", 500)
    assert content.endswith("data: [DONE]\n\n")


def _count_ready(client: Client) -> int:
    try:
        return count_ready(client)
    except OSError:
        return -1


def _is_writing(client: Client) -> bool:
    return metric(client, "vllm:generation_tokens_total") > 50


def _find_process(shell: int, port: int) -> psutil.Process:
    for process in psutil.Process(shell).children():
        if str(port) in process.cmdline() and "--servers" not in process.cmdline():
            return process
    raise LookupError(port)


def test_every_metric_is_on_the_page() -> None:
    assert [name for name in ROUTER_METRICS if name not in PAGE] == []


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("streams", "{value:,} open requests"),
        ("hold_s", "{value:g} s without a ready server"),
        ("hang_s", "silent for {value:g} s"),
        ("token_s", "without a token for {value:g} s"),
        ("first_token_s", "{value:g} s before its first"),
        ("drain_s", "move after {value:g} s"),
    ],
)
def test_its_values_are_the_defaults(setting: str, text: str) -> None:
    value = getattr(RouterSettings(servers="a:1"), setting)
    assert text.format(value=value) in " ".join(PAGE.split())
