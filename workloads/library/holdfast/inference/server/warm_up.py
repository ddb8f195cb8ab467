"""The first prediction of a predicting process, which may take as long as its load."""

from contextlib import suppress

from holdfast.inference.errors import ItemFault, PredictorBroken, ProcessDied
from holdfast.inference.predictor.predictor_client import ProcessPredictor
from holdfast.inference.server import tensors

PREDICT_TIMEOUT_S = 30.0
"""The maximum time of a batch for which a client still waits."""
_BODY = b"warm-up"
"""The body that is predicted before the server is ready, if the model describes no inputs."""


def make_body(predictor: ProcessPredictor) -> bytes:
    return tensors.make_sample(predictor.inputs) if predictor.inputs else _BODY


def load_again(predictor: ProcessPredictor) -> None:
    """Restarts the process if it has died, and predicts once, so that no request is late for it.

    Raises PredictorBroken if that fails.
    """
    if predictor.pid is not None:
        return
    predictor.load_again()
    timeout_s = predictor.timeout_s
    predictor.timeout_s = PREDICT_TIMEOUT_S
    try:
        with suppress(ItemFault):  # a model may reject this body; it works all the same
            predictor.predict([make_body(predictor)])
    except ProcessDied as error:
        raise PredictorBroken(f"{error}, at the warm-up") from error
    finally:
        predictor.timeout_s = timeout_s
