"""Run by an interpreter with another make's client: `python strangers.py PORT`; one JSON line."""

import json
import sys
from typing import Any


def triton(port: int) -> dict[str, Any]:
    import numpy as np
    import tritonclient.http as http

    client = http.InferenceServerClient(f"127.0.0.1:{port}")
    numbers = http.InferInput("x", [2, 2], "FP32")
    numbers.set_data_from_numpy(np.array([[1, 2], [3, 4]], dtype=np.float32), binary_data=False)
    texts = http.InferInput("text", [2], "BYTES")
    texts.set_data_from_numpy(np.array(["a", "é"], dtype=object), binary_data=False)
    wanted = [http.InferRequestedOutput(name, binary_data=False) for name in ("said", "length")]
    found = client.get_model_metadata("model")
    version = found["versions"][0]
    refused = ""
    try:
        client.infer(
            "model",
            [texts],
            outputs=wanted,
            model_version="9",
        )
    except http.InferenceServerException as error:
        refused = error.status()
    return {
        "ready": client.is_server_ready() and client.is_model_ready("model", version),
        "outputs": [each["name"] for each in found["outputs"]],
        "numbers": client.infer("model", [numbers], outputs=wanted).as_numpy("said").tolist(),
        "texts": client.infer(
            "model",
            [texts],
            outputs=wanted,
            model_version=version,
        )
        .as_numpy("said")
        .tolist(),
        "refused": refused,
    }


if __name__ == "__main__":
    print(json.dumps(triton(int(sys.argv[1]))))
