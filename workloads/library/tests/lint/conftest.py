"""The linter judges by the document of `example` here, as a user says it once for a shell."""

from collections.abc import Iterator

import pytest

from holdfast.vocabulary.environment import ENV_PLATFORM
from tests import platforms


@pytest.fixture(scope="module", autouse=True)
def platform_of_the_shell() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENV_PLATFORM, str(platforms.file("example")))
        yield
