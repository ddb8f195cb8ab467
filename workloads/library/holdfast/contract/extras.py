"""Which extra of the distribution brings a package that a command lacks. Extras: pyproject.toml of the library."""

import re
from collections.abc import Sequence

from holdfast.contract.errors import InputError

# Commands with an extra of their own.
OF_COMMAND = {
    "demo": "drill",
    "drill": "drill",
    "explain": "jobs",
    "export": "exporter",
    "lint": "lint",
    "move": "mover",
    "new-job": "jobs",
    "place": "place",
    "report": "report",
    "submit": "jobs",
}
# Imported package -> extra, for what any other command may lack. The longest name that fits decides.
OF_PACKAGE = {
    "accelerate": "accelerate",
    "altair": "report",
    "google": "gcs",
    "google.cloud.monitoring_v3": "report",
    "google.cloud.pubsub_v1": "pubsub",
    "google.pubsub_v1": "pubsub",
    "httptools": "server",
    "jinja2": "report",
    "kubernetes": "jobs",
    "lightning": "lightning",
    "markupsafe": "report",
    "numpy": "place",
    "prometheus_client": "server",
    "psutil": "drill",
    "psycopg": "postgres",
    "psycopg_pool": "postgres",
    "pyarrow": "postgres",
    "requests": "gcs",
    "ruamel": "lint",
    "starlette": "server",
    "torch": "torch",
    "transformers": "transformers",
    "urllib3": "gcs",
    "uvicorn": "server",
    "vl_convert": "report",
    "yaml": "lint",
}
# Of a package whose folder several distributions share, Python raises no ModuleNotFoundError.
_FROM_SHARED = re.compile(r"cannot import name '(\w+)' from '(google(?:\.cloud)?)'")


def lacking(error: ImportError, words: Sequence[str]) -> InputError | None:
    """What to answer where a command, called with these words, lacks a package of an extra; None for any other fault."""
    if shared := _FROM_SHARED.match(str(error)):
        name = f"{shared[2]}.{shared[1]}"
    else:
        name = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    by_package = next((OF_PACKAGE[prefix] for prefix in prefixes if prefix in OF_PACKAGE), None)
    if by_package is None:
        return None
    extra = OF_COMMAND.get(next(iter(words), ""), by_package)
    return InputError(
        "a package of this command is not installed",
        got=f"holdfast without {name}",
        allowed=f"holdfast with its extra {extra}",
        fix=f"pip install 'holdfast[{extra}]'",
    )
