"""Predictors and checkpoint stores of another distribution: installed next to the library, under
their names.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from holdfast.checkpoint.stores import LocalStorage, crc32c, open_storage
from holdfast.inference.predictor.spec import PredictorSpec, build
from holdfast.support.errors import InputError
from workloads.library.tests import distribution

MODULE = """
from pathlib import Path

from holdfast.checkpoint.stores import LocalStorage


class Length:
    configuration = {"predictor": "length", "version": 1}

    def predict(self, bodies):
        return [{"length": len(body)} for body in bodies]


def predictor(spec):
    return Length()


def store(url, *, request_s):
    return LocalStorage.open(str(Path(__file__).parent / url.partition("://")[2]))


def no_store(url, *, request_s):
    return url


def of_no_url():
    return None
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Installs a tiny distribution with one entry point of this group."""
    monkeypatch.syspath_prepend(str(tmp_path))
    # Each test has a module of its own under the same name.
    monkeypatch.delitem(sys.modules, "acme_parts", raising=False)

    return partial(distribution.install, tmp_path, "acme-parts", MODULE)


def test_a_predictor_is_used_by_its_name(install: Callable[[str, str], None]) -> None:
    with pytest.raises(InputError, match="the predictor is unknown"):
        build(PredictorSpec(name="length"))
    install("holdfast.predictors", "length = acme_parts:predictor")
    assert build(PredictorSpec(name="length")).predict([b"abc"]) == [{"length": 3}]
    with pytest.raises(InputError) as error:
        build(PredictorSpec(name="lenght"))
    assert error.value.allowed == "gpt, entropy, length, or MODULE:FUNCTION"


def test_a_store_is_opened_by_its_scheme(
    install: Callable[[str, str], None], tmp_path: Path
) -> None:
    install("holdfast.stores", "acme = acme_parts:store")
    store = open_storage("acme://runs")
    assert isinstance(store, LocalStorage)
    data = memoryview(bytearray(b"x"))
    store.put("a/b", data, crc32c(data))
    assert (tmp_path / "runs" / "a" / "b").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("function", "got"), [("no_store", "str"), ("of_no_url", "argument"), ("gone", "gone")]
)
def test_a_broken_store_names_its_distribution(
    install: Callable[[str, str], None], function: str, got: str
) -> None:
    install("holdfast.stores", f"acme = acme_parts:{function}")
    with pytest.raises(InputError) as error:
        open_storage("acme://runs")
    assert "acme-parts" in error.value.what
    assert got in error.value.got
