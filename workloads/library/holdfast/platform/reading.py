"""A platform document from text or a file. What cannot be read says why, and nothing is guessed."""

import json
from pathlib import Path
from typing import Any

from holdfast.platform.codec import decode, encode
from holdfast.platform.document import SCHEMA, Platform
from holdfast.support.distribution import DISTRIBUTION
from holdfast.support.errors import InputError

FILE = "platform.json"
MAX_BYTES = 1_000_000  # the bound of a ConfigMap
_WRITE = "python -m infra describe ENV writes one"


def text(platform: Platform) -> str:
    return json.dumps({"schema": SCHEMA, **encode(platform)}, indent=1) + "\n"


def parse(document: str, source: str) -> Platform:
    """The platform of a document; `source` names it in errors. Raises InputError."""
    if len(document) > MAX_BYTES:
        raise _refused(source, f"{len(document):,} characters", f"at most {MAX_BYTES:,}")
    try:
        body: Any = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise _refused(source, f"no JSON: {error}", "one JSON object") from error
    if not isinstance(body, dict):
        raise _refused(source, type(body).__name__, "one JSON object")
    schema = body.pop("schema", None)
    if schema != SCHEMA:
        raise _of_another_version(source, schema)
    try:
        return decode(Platform, body, "")
    except InputError as error:
        raise InputError(
            f"{source}: {error.what}",
            got=error.got,
            allowed=error.allowed,
            fix=error.fix,
        ) from error


def read(path: Path) -> Platform:
    """The platform of a file. Raises InputError."""
    try:
        document = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(str(path), str(error), "a file that can be read") from error
    return parse(document, str(path))


def _of_another_version(source: str, schema: object) -> InputError:
    family, _, number = str(schema).partition("/")
    if family == SCHEMA.partition("/")[0] and number.isdecimal():
        newer = int(number) > int(SCHEMA.partition("/")[2])
        update = f"pip install -U {DISTRIBUTION}, or the wheel that the platform pins"
        fix = update if newer else f"raise the platform's pin of {DISTRIBUTION}, then make apply"
        return InputError(
            f"{source}: schema",
            got=schema,
            allowed=f"{SCHEMA}, which this release reads",
            fix=fix,
        )
    return _refused(source, f"schema {schema!r:.100}", SCHEMA)


def _refused(source: str, got: str, allowed: str) -> InputError:
    return InputError(
        f"{source} is no platform document",
        got=got[:300],
        allowed=allowed,
        fix=_WRITE,
    )
