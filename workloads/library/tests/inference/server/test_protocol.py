"""Tests of the protocol with other clients: versions, outputs, tensors, errors as JSON."""

import json
import subprocess
from pathlib import Path

import pytest

from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT
from tests.plan.isolated import environment
from workloads.library.tests.inference.server.serving import (
    INFER,
    PREDICTORS,
    Served,
    serve,
    texts,
)

pytestmark = pytest.mark.process
ADDING = f"{PREDICTORS}:adding"


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
    assert server.infer("x" * 80_000).output("length") == [80_000]
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
    assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
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


def test_metadata_has_the_inputs_that_a_model_describes(tmp_path: Path) -> None:
    with serve(tmp_path, predictor=ADDING) as server:
        metadata = server.request("GET", "/v2/models/model").json
        assert metadata["inputs"] == [
            {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "flag", "datatype": "BOOL", "shape": [-1]},
        ]
        datatypes = {output["name"]: output["datatype"] for output in metadata["outputs"]}
        assert datatypes == {"sum": "FP64", "flag": "BOOL"}, "the warm-up has the model's inputs"
        tensors: list[dict[str, object]] = []
        for tensor in metadata["inputs"]:
            data = [1.5, 2.0] if tensor["name"] == "x" else [True]
            shape = [1, *tensor["shape"][1:]]
            tensors.append(tensor | {"shape": shape, "data": data})
        body = json.dumps({"inputs": tensors}).encode()
        answer = server.request("POST", INFER, body)
        assert answer.output("sum") == [3.5], "a request made from the metadata works"


def test_metadata_claims_no_texts_for_a_model_that_rejects_them(tmp_path: Path) -> None:
    with serve(tmp_path, "--model", "undescribed", predictor=ADDING) as server:
        assert server.request("GET", "/v2/models/model").json["inputs"] == []


def test_inputs_that_are_not_valid_are_bad_input(tmp_path: Path) -> None:
    with serve(tmp_path, "--model", "misdescribed", predictor=ADDING, ready=False) as server:
        assert server.wait() == EXIT_BAD_INPUT
        assert "description of its inputs" in server.log.read_text()


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
