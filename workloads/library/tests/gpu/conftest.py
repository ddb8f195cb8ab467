import pytest

from tests import support


@pytest.fixture(autouse=True)
def gpu() -> None:
    import torch

    support.require(torch.cuda.is_available(), "no GPU is visible")
