"""The protocol as other makes of clients speak it: versions, wanted outputs, what is not supported, errors as JSON."""

import json
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.plan.isolated import environment
from workloads.library.tests.inference.server.serving import (
    INFER,
    PREDICTORS,
    Served,
    served,
    texts,
)

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    folder = tmp_path_factory.mktemp("protocol")
    with served(folder, predictor=f"{PREDICTORS}:echoing") as running:
        yield running


def test_wanted_outputs_alone_come(server: Served) -> None:
    content = json.loads(texts("a")) | {"outputs": [{"name": "bytes", "parameters": {"binary_data": True}}]}
    answer = server.request("POST", INFER, json.dumps(content).encode())
    assert [(each["name"], each["data"]) for each in answer.json["outputs"]] == [("bytes", [1])]
    content["outputs"] = [{"name": "nothing"}]
    refused = server.request("POST", INFER, json.dumps(content).encode())
    assert refused.status == 400 and "said, bytes" in refused.json["error"]


NUMBER = {"name": "x", "datatype": "INT8", "shape": [1], "data": [1]}


@pytest.mark.parametrize(
    "content",
    [
        {"inputs": [NUMBER | {"parameters": {"shared_memory_region": "r"}}]},
        {"inputs": [NUMBER | {"parameters": {"binary_data_size": 1}}]},
        {"inputs": [NUMBER], "outputs": [{"name": "said", "parameters": {"classification": 2}}]},
        {"inputs": [NUMBER], "parameters": {"sequence_id": 2}},
    ],
)
def test_parameters_that_would_change_the_answer_are_400(server: Served, content: dict[str, Any]) -> None:
    refused = server.request("POST", INFER, json.dumps(content).encode())
    assert refused.status == 400 and "is not supported" in refused.json["error"]


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [("inference-header-content-length", "20", 400), ("content-encoding", "gzip", 415)],
)
def test_bodies_that_are_not_plain_json_are_refused_with_what_to_send(
    server: Served, header: str, value: str, status: int
) -> None:
    refused = server.request("POST", INFER, texts("a"), {header: value})
    assert (refused.status, "send" in refused.json["error"]) == (status, True)
    assert server.infer("after").status == 200


def test_metadata_and_versions_are_of_the_model_that_answers(server: Served) -> None:
    found = server.request("GET", "/v2/models/model").json
    assert [(each["name"], each["datatype"]) for each in found["outputs"]] == [("said", "BYTES"), ("bytes", "INT64")]
    (version,) = found["versions"]
    assert version == server.infer("a").json["model_version"]
    one = f"/v2/models/model/versions/{version}"
    assert server.request("GET", one).json == found
    assert server.request("GET", f"{one}/ready").status == 200
    assert server.request("POST", f"{one}/infer", texts("a")).status == 200
    other = server.request("POST", "/v2/models/model/versions/other/infer", texts("a"))
    assert other.status == 404 and version in other.json["error"]


def test_routes_that_there_are_not_are_answered_in_json(server: Served) -> None:
    assert server.request("GET", "/v2/nothing").json == {"error": "Not Found"}
    assert server.request("GET", INFER).json == {"error": "Method Not Allowed"}


def test_tritonclient_as_it_comes(server: Served) -> None:
    """In an environment of its own, with JSON in place of binary tensors."""
    script = Path(__file__).with_name("strangers.py")
    command = [environment("clients") / "bin" / "python", script, str(server.port)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "ready": True,
        "outputs": ["said", "bytes"],
        "numbers": ['{"x": [1.0, 2.0]}', '{"x": [3.0, 4.0]}'],
        "texts": ["a", "é"],
        "refused": "404",
    }
