"""The protocols as other makes of clients speak them: binary tensors, packed bodies, versions, outputs, errors as JSON."""

import gzip
import json
import struct
import subprocess
import zlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.plan.isolated import environment
from workloads.library.tests.inference.server.serving import (
    INFER,
    PREDICTORS,
    Answer,
    Served,
    served,
    stepped,
    texts,
)

pytestmark = pytest.mark.process
LENGTH = "inference-header-content-length"
MIB = 1024 * 1024
LARGE = 200_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    folder = tmp_path_factory.mktemp("protocol")
    with served(folder, "--batch", "8", "--set", f"body_bytes={MIB}", predictor=f"{PREDICTORS}:echoing") as running:
        yield running


def asked(server: Served, content: Mapping[str, Any], *blobs: bytes, path: str = INFER, **headers: str) -> Answer:
    text = json.dumps(content).encode()
    return server.request("POST", path, b"".join((text, *blobs)), {LENGTH: str(len(text)), **headers})


def tensor(datatype: str, shape: list[int], blob: bytes, **more: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(blob)}} | more


def outputs(answer: Answer) -> dict[str, Any]:
    """Of an answer in binary: name -> its tensor and its bytes."""
    size = int(answer.headers[LENGTH])
    found, at = dict[str, Any](), size
    for each in json.loads(answer.body[:size])["outputs"]:
        length = each["parameters"]["binary_data_size"]
        found[each["name"]] = (each, answer.body[at : at + length])
        at += length
    assert at == len(answer.body)
    return found


@pytest.mark.parametrize(
    ("datatype", "form", "values"),
    [
        ("FP32", "f", [0.5, -2.0, 1.0, 3.0]),
        ("FP16", "e", [0.5, -2.0, 1.0, 3.0]),
        ("INT64", "q", [-(2**63), 2**63 - 1, 0, 1]),
        ("UINT8", "B", [0, 255, 1, 2]),
        ("BOOL", "?", [True, False, True, True]),
    ],
)
def test_numbers_come_in_binary(server: Served, datatype: str, form: str, values: list[Any]) -> None:
    blob = struct.pack(f"<4{form}", *values)
    answer = asked(server, {"inputs": [tensor(datatype, [2, 2], blob)]}, blob)
    assert [json.loads(text) for text in answer.output("said")] == [{"x": values[:2]}, {"x": values[2:]}]


def test_texts_come_and_all_outputs_go_in_binary(server: Served) -> None:
    blob = b"".join(struct.pack("<I", len(text)) + text for text in (b"a", "é".encode()))
    content = {"id": "7", "inputs": [tensor("BYTES", [2], blob)], "parameters": {"binary_data_output": True}}
    answer = asked(server, content, blob)
    assert answer.headers["content-type"] == "application/octet-stream"
    found = outputs(answer)
    assert found["said"][1] == blob
    assert struct.unpack("<2q", found["bytes"][1]) == (1, 2)
    assert found["bytes"][0]["datatype"] == "INT64"


def test_wanted_outputs_alone_come_and_each_as_it_is_wanted(server: Served) -> None:
    content = json.loads(texts("a")) | {"outputs": [{"name": "bytes"}]}
    answer = server.request("POST", INFER, json.dumps(content).encode())
    assert [each["name"] for each in answer.json["outputs"]] == ["bytes"]
    content["outputs"] = [{"name": "bytes", "parameters": {"binary_data": True}}]
    assert list(outputs(server.request("POST", INFER, json.dumps(content).encode()))) == ["bytes"]
    content["outputs"] = [{"name": "nothing"}]
    refused = server.request("POST", INFER, json.dumps(content).encode())
    assert refused.status == 400 and "said, bytes" in refused.json["error"]


@pytest.mark.parametrize(
    ("content", "blob"),
    [
        ({"inputs": [tensor("FP32", [2], b"12345678")]}, b"1234"),
        ({"inputs": [tensor("FP32", [2], b"12345678")]}, b"123456789"),
        ({"inputs": [tensor("FP32", [3], b"12345678")]}, b"12345678"),
        ({"inputs": [tensor("FP32", [1], b"\0\0\xc0\x7f")]}, b"\0\0\xc0\x7f"),
        ({"inputs": [tensor("BYTES", [1], b"\xff\0\0\0a")]}, b"\xff\0\0\0a"),
        ({"inputs": [tensor("BYTES", [1, 1], b"\1\0\0\0\xff")]}, b"\1\0\0\0\xff"),
        ({"inputs": [tensor("FP32", [1], b"", parameters={"binary_data_size": -1})]}, b""),
        ({"inputs": [tensor("FP32", [1], b"", parameters={"shared_memory_region": "r"})]}, b""),
        (
            {"inputs": [tensor("INT8", [1], b"1")], "outputs": [{"name": "said", "parameters": {"classification": 2}}]},
            b"1",
        ),
        ({"inputs": [tensor("INT8", [1], b"1")], "parameters": {"sequence_id": 2}}, b"1"),
    ],
)
def test_what_does_not_fit_is_400(server: Served, content: dict[str, Any], blob: bytes) -> None:
    assert asked(server, content, blob).status == 400
    assert server.infer("after").status == 200


def test_a_length_that_is_none_is_400(server: Served) -> None:
    for length in ("x", "-1", "999999"):
        assert server.request("POST", INFER, texts("a"), {LENGTH: length}).status == 400


def test_packed_bodies_are_unpacked_within_the_bound(server: Served) -> None:
    for packing, pack in (("gzip", gzip.compress), ("deflate", zlib.compress)):
        packed = server.request("POST", INFER, pack(texts("a")), {"content-encoding": packing})
        assert packed.output("said") == ["a"]
    bomb = gzip.compress(texts("x" * 100 * MIB))
    assert len(bomb) < MIB
    assert server.request("POST", INFER, bomb, {"content-encoding": "gzip"}).status == 413
    for broken in (b"no gzip", gzip.compress(texts("a"))[:-4]):
        assert server.request("POST", INFER, broken, {"content-encoding": "gzip"}).status == 400
    assert server.request("POST", INFER, texts("a"), {"content-encoding": "br"}).status == 415


@pytest.mark.parametrize(
    ("accepts", "size", "packed"),
    [
        ("gzip", LARGE, True),
        ("br;q=1, gzip;q=0.5", LARGE, True),
        ("gzip", 9, False),
        ("gzip;q=0", LARGE, False),
        ("", LARGE, False),
    ],
)
def test_a_large_answer_is_packed_for_those_who_take_gzip(
    server: Served, accepts: str, size: int, packed: bool
) -> None:
    answer = server.request("POST", INFER, texts("x" * size), {"accept-encoding": accepts})
    assert (answer.headers.get("content-encoding") == "gzip") is packed
    assert (answer.headers.get("vary") == "accept-encoding") is (size == LARGE)
    body = gzip.decompress(answer.body) if packed else answer.body
    assert json.loads(body)["outputs"][0]["data"] == ["x" * size]
    assert len(answer.body) < LARGE / 10 or not packed


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
    assert server.request("GET", "/v2").json["extensions"] == ["binary_tensor_data"]


def test_routes_that_there_are_not_are_answered_in_json(server: Served) -> None:
    assert server.request("GET", "/v2/nothing").json == {"error": "Not Found"}
    assert server.request("GET", INFER).json == {"error": "Method Not Allowed"}
    assert server.request("GET", "/v1/chat/completions").json["error"]["type"] == "invalid_request_error"


# tritonclient and openai as they come, in an environment of their own: no option of theirs is needed.

SCRIPT = Path(__file__).with_name("strangers.py")


def seen(client: str, server: Served) -> dict[str, Any]:
    command = [environment("clients") / "bin" / "python", SCRIPT, client, str(server.port)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_tritonclient_as_it_comes(server: Served) -> None:
    assert seen("triton", server) == {
        "ready": True,
        "outputs": ["said", "bytes"],
        "numbers": ['{"x": [1.0, 2.0]}', '{"x": [3.0, 4.0]}'],
        "texts": ["a", "é"],
        "packed": [1, 2],
        "refused": "404",
    }


def test_openai_as_it_comes(tmp_path: Path) -> None:
    with stepped(tmp_path, predictor="completing") as (server, _):
        assert seen("openai", server) == {
            "models": ["model"],
            "whole": "1.1 1.2 1.3 ",
            "pieces": ["1.1 ", "1.2 ", "1.3 "],
            "usage": 11,
            "refused": ["echo", "extra_body", "logprobs", "prompt", "stream_options", "suffix"],
        }
