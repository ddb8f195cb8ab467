"""A program with Triton's client, `python triton_client.py PORT`; it prints one JSON line."""

import json
import sys
from typing import Any


def call_server(port: int) -> dict[str, Any]:
    import numpy as np
    import tritonclient.http as http

    client = http.InferenceServerClient(f"127.0.0.1:{port}")
    numbers = http.InferInput("x", [2, 2], "FP32")
    numbers.set_data_from_numpy(
        np.array([[1, 2], [3, 4]], dtype=np.float32),
        binary_data=False,
    )
    texts = http.InferInput("text", [2], "BYTES")
    texts.set_data_from_numpy(
        np.array(["a", "é"], dtype=object),
        binary_data=False,
    )
    outputs = [http.InferRequestedOutput(name, binary_data=False) for name in ("said", "length")]
    metadata = client.get_model_metadata("model")
    version = metadata["versions"][0]

    def infer(tensor: Any, model_version: str = "") -> list[str]:
        result = client.infer(
            "model",
            [tensor],
            outputs=outputs,
            model_version=model_version,
        )
        return result.as_numpy("said").tolist()

    refusal = ""
    try:
        infer(texts, "9")
    except http.InferenceServerException as error:
        refusal = error.status()
    return {
        "ready": client.is_server_ready() and client.is_model_ready("model", version),
        "outputs": [output["name"] for output in metadata["outputs"]],
        "numbers": infer(numbers),
        "texts": infer(texts, version),
        "refused": refusal,
    }


if __name__ == "__main__":
    print(json.dumps(call_server(int(sys.argv[1]))))
