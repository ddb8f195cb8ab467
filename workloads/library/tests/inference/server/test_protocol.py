"""Tests of the protocol with other clients: versions, outputs, tensors, errors as JSON."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.plan.isolated import environment
from workloads.library.tests.inference.server.serving import INFER, Served, texts

pytestmark = pytest.mark.process


def test_numbers_texts_and_several_inputs_are_answered(server: Served) -> None:
    inputs = [
        {
            "name": "a",
            "datatype": "INT64",
            "shape": [2, 2],
            "data": [1, 2, 3, 4],
        },
        {
            "name": "b",
            "datatype": "BOOL",
            "shape": [2],
            "data": [True, False],
        },
    ]
    answer = server.request(
        "POST",
        INFER,
        json.dumps({"id": "7", "inputs": inputs}).encode(),
    )
    assert answer.json["id"] == "7"
    assert answer.output("said") == ['{"a": [1, 2], "b": true}', '{"a": [3, 4], "b": false}']
    assert answer.headers["x-model-commit"] == answer.json["model_version"]
    assert server.infer("é", "b").output("length") == [2, 1]
    # The response has only the requested outputs.
    requested_output = {
        "name": "length",
        "parameters": {"binary_data": True},
    }
    content = json.loads(texts("a")) | {"outputs": [requested_output]}
    answer = server.request(
        "POST",
        INFER,
        json.dumps(content).encode(),
    )
    (output,) = answer.json["outputs"]
    assert output["name"] == "length"
    assert output["data"] == [1]


def test_metadata_and_versions_match_the_model(server: Served) -> None:
    metadata = server.request("GET", "/v2/models/model").json
    datatypes = {output["name"]: output["datatype"] for output in metadata["outputs"]}
    assert datatypes == {"said": "BYTES", "length": "INT64"}
    (version,) = metadata["versions"]
    path = f"/v2/models/model/versions/{version}"
    assert server.request("POST", f"{path}/infer", texts("a")).json["model_version"] == version
    assert server.request("GET", path).json == metadata
    assert server.request("GET", f"{path}/ready").status == 200
    other = server.request("POST", "/v2/models/model/versions/other/infer", texts("a"))
    assert other.status == 404
    assert version in other.json["error"]


def test_tritonclient_works(server: Served) -> None:
    """It runs in an environment of its own, with JSON instead of binary tensors."""
    script = Path(__file__).with_name("triton_client.py")
    command = [environment("clients") / "bin" / "python", script, str(server.port)]
    client = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert client.returncode == 0, client.stderr
    assert json.loads(client.stdout) == {
        "ready": True,
        "outputs": ["said", "length"],
        "numbers": ['{"x": [1.0, 2.0]}', '{"x": [3.0, 4.0]}'],
        "texts": ["a", "é"],
        "refused": "404",
    }
