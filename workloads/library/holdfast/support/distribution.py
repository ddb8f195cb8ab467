"""Names the distribution that installs this package.

On PyPI, the package's own name belongs to another project.
"""

# Why it is so: infra/decisions/0121.

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from holdfast.support.errors import InputError

DISTRIBUTION = "holdfast-gke"
FOREIGN = "holdfast"
_FOREIGN_METADATA = re.compile(rf"{FOREIGN}(-\d[^-]*(-py[\d.]+)?)?\.(dist|egg)-info", re.IGNORECASE)


def require_no_foreign_package() -> None:
    """Raises InputError if a distribution named `holdfast` is installed.

    It overwrites files of this package.
    """
    for metadata in _foreign_metadata():
        version = find_version()
        requirement = f"{DISTRIBUTION}=={version}" if version else DISTRIBUTION
        raise InputError(
            f"another distribution that installs the package {FOREIGN} is present",
            got=metadata,
            allowed=f"{DISTRIBUTION} alone: the two overwrite each other's files",
            fix=(
                f"pip uninstall {FOREIGN}; pip install --force-reinstall --no-deps {requirement},"
                " or its wheel"
            ),
        )


def describe_version() -> str:
    """Returns the distribution with the version of the package, which a clone has too."""
    return f"{DISTRIBUTION} {vars(sys.modules['holdfast'])['__version__']}"


def install_command(extra: str) -> str:
    """Returns the command that adds an extra to this installation, by the wheel that it is from."""
    if find_version():
        requirement = f"{find_wheel() or DISTRIBUTION}[{extra}]"
        return f"pip install {shlex.quote(requirement)}"
    return "make setup"


def find_wheel() -> str:
    """Returns the path of the wheel that was installed.

    It is empty if the library came from an index, or if the file is gone.
    """
    import json
    from importlib.metadata import distribution
    from urllib.parse import unquote, urlsplit

    recorded = distribution(DISTRIBUTION).read_text("direct_url.json")
    if not recorded:
        return ""
    address = urlsplit(json.loads(recorded)["url"])
    path = Path(unquote(address.path))
    is_wheel = address.scheme == "file" and path.suffix == ".whl"
    return str(path) if is_wheel and path.is_file() else ""


def _foreign_metadata() -> Iterator[Path]:
    # Importing importlib.metadata takes half as long as all of `holdfast --help`.
    for folder in sys.path:
        with suppress(OSError):  # an archive, or a missing folder
            for path in Path(folder).iterdir():
                if _FOREIGN_METADATA.fullmatch(path.name):
                    yield path


def find_version() -> str:
    """Returns the version; empty in a clone, where `make setup` links the package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return ""
