"""The bench's predictor behind LitServe; runs in an environment with LitServe."""

import sys

import litserve

from workloads.library.tests.inference.server.playing_predictors import GpuLike


class Api(litserve.LitAPI):
    def setup(self, device):
        self.model = GpuLike()

    # LitServe looks for parameters of these names.
    def decode_request(self, request):
        return request["text"].encode()

    def predict(self, x):
        return self.model.predict(x)

    def batch(self, inputs):
        return inputs

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return output


if __name__ == "__main__":
    batch_items = int(sys.argv[1])
    port = int(sys.argv[2])
    # The setting with the highest throughput, of both queues with a wait of 0 and of 5 ms.
    api = Api(max_batch_size=batch_items, batch_timeout=0.005)
    server = litserve.LitServer(
        api,
        accelerator="cpu",
        fast_queue=True,
        timeout=60,
    )
    server.run(
        host="127.0.0.1",
        port=port,
        generate_client_file=False,
        log_level="warning",
    )
