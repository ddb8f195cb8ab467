"""Run by an interpreter with other makes' clients, as they come: `python strangers.py triton|openai PORT`; one JSON line."""

import json
import sys
from typing import Any


def triton(port: int) -> dict[str, Any]:
    import numpy as np
    import tritonclient.http as http

    client = http.InferenceServerClient(f"127.0.0.1:{port}")
    numbers = http.InferInput("x", [2, 2], "FP32")
    numbers.set_data_from_numpy(np.array([[1, 2], [3, 4]], dtype=np.float32))
    texts = http.InferInput("text", [2], "BYTES")
    texts.set_data_from_numpy(np.array([b"a", "é".encode()], dtype=object))
    wanted = [http.InferRequestedOutput("bytes", binary_data=False)]
    packed = {"request_compression_algorithm": "gzip", "response_compression_algorithm": "gzip"}
    found = client.get_model_metadata("model")
    version = found["versions"][0]
    refused = ""
    try:
        client.infer("model", [texts], model_version="9")
    except http.InferenceServerException as error:
        refused = error.status()
    return {
        "ready": client.is_server_ready() and client.is_model_ready("model", version),
        "outputs": [each["name"] for each in found["outputs"]],
        "numbers": [text.decode() for text in client.infer("model", [numbers]).as_numpy("said")],
        "texts": [text.decode() for text in client.infer("model", [texts], model_version=version).as_numpy("said")],
        "packed": client.infer("model", [texts], outputs=wanted, **packed).as_numpy("bytes").tolist(),
        "refused": refused,
    }


def openai(port: int) -> dict[str, Any]:
    from openai import BadRequestError, OpenAI

    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    usual: dict[str, Any] = {"model": "model", "prompt": ["count"], "max_tokens": 3}
    refused = list[str]()
    for more in (
        {"echo": True},
        {"logprobs": 1},
        {"suffix": "x"},
        {"stream_options": {"include_usage": True}},
        {"prompt": ["a", "b"]},
        {"extra_body": {"top_k": 1}},
    ):
        try:
            client.completions.create(**(usual | more))
        except BadRequestError:
            refused += more
    counting: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    *_, last = client.completions.create(**usual, **counting)
    return {
        "usage": last.usage and last.usage.total_tokens,
        "models": [model.id for model in client.models.list()],
        "whole": client.completions.create(**usual, echo=False, user="me").choices[0].text,
        "pieces": [piece.choices[0].text for piece in client.completions.create(**usual, stream=True)],
        "refused": sorted(refused),
    }


if __name__ == "__main__":
    print(json.dumps({"triton": triton, "openai": openai}[sys.argv[1]](int(sys.argv[2]))))
