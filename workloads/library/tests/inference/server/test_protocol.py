"""The protocol as other makes of clients speak it: versions, wanted outputs, tensors, errors as
JSON.
"""

import json
import subprocess
from pathlib import Path

import pytest

from tests.plan.isolated import environment
from workloads.library.tests.inference.server.serving import INFER, Served, texts

pytestmark = pytest.mark.process


def test_numbers_text_and_several_inputs_come_through(server: Served) -> None:
    two = [
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
    answer = server.request("POST", INFER, json.dumps({"id": "7", "inputs": two}).encode())
    assert answer.json["id"] == "7"
    assert answer.output("said") == ['{"a": [1, 2], "b": true}', '{"a": [3, 4], "b": false}']
    assert answer.headers["x-model-commit"] == answer.json["model_version"]
    assert server.infer("é", "b").output("length") == [2, 1]
    # Only the outputs that are wanted.
    content = json.loads(texts("a")) | {
        "outputs": [
            {
                "name": "length",
                "parameters": {"binary_data": True},
            }
        ]
    }
    answer = server.request("POST", INFER, json.dumps(content).encode())
    assert [(each["name"], each["data"]) for each in answer.json["outputs"]] == [("length", [1])]


def test_metadata_and_versions_are_of_the_model_that_answers(server: Served) -> None:
    found = server.request("GET", "/v2/models/model").json
    assert [(each["name"], each["datatype"]) for each in found["outputs"]] == [
        ("said", "BYTES"),
        ("length", "INT64"),
    ]
    (version,) = found["versions"]
    one = f"/v2/models/model/versions/{version}"
    assert server.request("POST", f"{one}/infer", texts("a")).json["model_version"] == version
    assert (server.request("GET", one).json, server.request("GET", f"{one}/ready").status) == (
        found,
        200,
    )
    other = server.request("POST", "/v2/models/model/versions/other/infer", texts("a"))
    assert other.status == 404 and version in other.json["error"]


def test_tritonclient_as_it_comes(server: Served) -> None:
    """In an environment of its own, with JSON in place of binary tensors."""
    script = Path(__file__).with_name("strangers.py")
    command = [environment("clients") / "bin" / "python", script, str(server.port)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "ready": True,
        "outputs": ["said", "length"],
        "numbers": ['{"x": [1.0, 2.0]}', '{"x": [3.0, 4.0]}'],
        "texts": ["a", "é"],
        "refused": "404",
    }
