"""Tests of the predictor `gpt`: exact scores, and models that do not fit."""

from pathlib import Path

import pytest
import torch

from holdfast.inference.predictor.gpt import ROWS, GptLoss, Model, load_model
from holdfast.support.errors import InputError
from holdfast.training.trainer.model import ByteGPT, ModelConfig

CONFIG = ModelConfig(
    context=32,
    width=64,
    layers=2,
    heads=4,
)


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(3)
    tensors = {}
    for name, value in ByteGPT(CONFIG).state_dict().items():
        tensors[f"model/{name}"] = value
    return Model(
        identity={
            "run": "r",
            "step": 1,
            "attempt": "a",
        },
        config=CONFIG.to_json(),
        tensors=tensors,
    )


def load_predictor(model: Model, **settings: int) -> GptLoss:
    predictor = GptLoss(model, **settings)
    predictor.load()
    return predictor


def test_a_score_is_identical_in_any_micro_batch(model: Model) -> None:
    predictor = load_predictor(model, score_bytes=200)
    bodies = []
    for n in range(20):
        bodies.append(bytes((n * k + k) % 256 for k in range(n * 7)))
    values = [predictor.predict([body])[0] for body in bodies]
    assert predictor.predict(bodies) == values
    assert predictor.predict(bodies[::-1]) == values[::-1]
    assert predictor.predict(bodies[3:19:2]) == values[3:19:2]


def test_the_score_is_the_mean_loss_for_the_following_bytes(model: Model) -> None:
    network = ByteGPT(CONFIG).eval()
    state = {}
    for key, tensor in model.tensors.items():
        state[key.removeprefix("model/")] = tensor
    network.load_state_dict(state)
    body = bytes(range(100))
    rows = torch.tensor([list(body[: CONFIG.context + 1])])
    expected = network.loss(rows[:, :-1], rows[:, 1:]).item()
    (value,) = load_predictor(model, score_bytes=CONFIG.context + 1).predict([body])
    assert value["bytes"] == CONFIG.context
    assert value["score"] == pytest.approx(expected, rel=1e-5)


def test_all_windows_in_several_passes_are_scored(model: Model) -> None:
    count = CONFIG.context * (2 * ROWS + 1)
    (value,) = load_predictor(model, score_bytes=10**6).predict([b"x" * (count + 1)])
    assert value["bytes"] == count


def test_a_body_without_a_following_byte_has_no_score(model: Model) -> None:
    assert load_predictor(model).predict([b"", b"x"]) == [{"score": None, "bytes": 0}] * 2


@pytest.mark.parametrize(
    "config",
    [
        {},
        {
            "context": 32,
            "width": 64,
            "layers": 3,
            "heads": 4,
            "dropout": 0.1,
        },
    ],
)
def test_a_checkpoint_with_another_shape_is_rejected(
    model: Model, config: dict[str, float]
) -> None:
    other = Model(identity=model.identity, config=config, tensors=model.tensors)
    with pytest.raises(InputError, match="does not fit"):
        GptLoss(other).load()


def test_a_folder_without_checkpoints_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="which run's checkpoint"):
        load_model(str(tmp_path), "", {})
