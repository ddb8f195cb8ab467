"""Sets the document of `example` for these tests, as a user does once for a shell."""

from collections.abc import Iterator

import pytest

from holdfast.vocabulary.environment import ENV_PLATFORM
from tests import platforms


@pytest.fixture(scope="module", autouse=True)
def use_example_platform() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENV_PLATFORM, str(platforms.file("example")))
        yield
