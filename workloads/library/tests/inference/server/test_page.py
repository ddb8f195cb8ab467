"""The page of serving: its predictor and proxy run, and its deadlines are those of the contract."""

import json
import re
from pathlib import Path

import pytest

from holdfast.drill.serving.fleet import free_port
from holdfast.vocabulary.serving import TRIES, drain_budget
from workloads.library.tests.inference.server.serving import INFER, ROOT, Client, envoy, serve
from workloads.library.tests.processes import until

PAGE = (ROOT / "workloads/library/docs/how-to/serve-a-model.md").read_text()
PROGRAMS = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.process
def test_the_programs_on_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_model.py").write_text(PROGRAMS["my_model"])
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT}:{ROOT / 'workloads/library'}"}
    monkeypatch.chdir(tmp_path)
    port = free_port()
    admin_port = free_port()
    metrics = free_port()
    with (
        serve(tmp_path, predictor="my_model:make", env=path) as first,
        serve(tmp_path, predictor="my_model:make", env=path) as second,
    ):
        program = PROGRAMS["proxy"].replace("8081", str(first.port))
        program = program.replace("8082", str(second.port))
        ports = f"port={port}, admin_port={admin_port}, metrics_port={metrics}"
        exec(program.replace('host="127.0.0.1"', f'host="127.0.0.1", {ports}'), {})
        with envoy(Path("proxy/envoy.json"), admin_port) as healthy:
            until(lambda: healthy() == 2, "both servers")
            assert Client(port).infer("a", "b").output("upper") == ["A", "B"]
            numbers = {
                "name": "x",
                "datatype": "FP32",
                "shape": [2, 2],
                "data": [1, 2, 3, 4],
            }
            body = json.dumps({"inputs": [numbers]}).encode()
            assert Client(port).request("POST", INFER, body).output("sum") == [3, 7]


@pytest.mark.parametrize("window_s", [15, 105])
def test_its_deadlines_match_the_contract(window_s: int) -> None:
    longest_s = drain_budget(window_s).longest_request_s
    try_s = longest_s / TRIES
    answer_s = try_s - min(0.5, try_s / 10)
    row = f"| {window_s} s | {longest_s:g} s | {try_s:.2g} s | {answer_s:.3g} s |"
    assert row in PAGE, row
