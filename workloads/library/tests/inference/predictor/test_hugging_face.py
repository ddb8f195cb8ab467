"""The example for a Hugging Face model: a tiny one with random weights, in the frameworks' own environment."""

import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.contract.errors import InputError
from holdfast.contract.exit_codes import EXIT_COMPLETE
from holdfast.inference.items import Item
from holdfast.inference.predictor.hugging_face import ROWS, TextClassifier
from holdfast.inference.predictor.proxy import ProcessPredictor
from holdfast.inference.predictor.spec import PredictorSpec
from tests import support
from tests.tools import frameworks
from workloads.library.tests.inference.harness import QUICK, Harness

ROOT = Path(__file__).parents[4]
BODIES = [" ".join("abcdefgh"[(n * k) % 8] for k in range(n)).encode() for n in range(ROWS + 8)]


@pytest.mark.process
@pytest.mark.timeout(600)  # a start of torch and transformers
def test_texts_are_labelled_and_the_same_in_any_company(
    harness: Harness, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{site()}")
    spec = PredictorSpec(
        name="workloads.library.tests.inference.predictor.tiny_text:made", model=str(tmp_path / "model")
    )
    harness.settings = replace(QUICK, max_failures=1)
    harness.enqueue([Item(job=job, id=f"{n:02d}", body=body) for n, body in enumerate([*BODIES, b"\xff\xfe"])])
    with closing(ProcessPredictor(spec, timeout_s=300.0)) as predictor:
        predictor.load()
        together = predictor.predict(BODIES)
        assert predictor.predict(BODIES[::-1]) == together[::-1]
        assert [predictor.predict([body])[0] for body in BODIES[::5]] == together[::5]
        assert harness.worker(predictor).run() == EXIT_COMPLETE
    assert len({value["score"] for value in together}) > 1
    expected = {f"{n:02d}": ("done", value) for n, value in enumerate(together)}
    assert harness.rows() == {**expected, f"{len(BODIES)}": ("dead", None)}, "what is no text is dead"


def test_a_folder_that_is_no_model_is_bad_input(tmp_path: Path) -> None:
    for folder in ("", str(tmp_path)):
        with pytest.raises(InputError, match=r"no config\.json"):
            TextClassifier(folder)


def site() -> Path:
    try:
        return frameworks.install()
    except (OSError, subprocess.CalledProcessError) as error:
        support.unavailable(f"the frameworks cannot be installed: {error}")
