"""Reads and writes files whose fields are those of a dataclass: job files and service files.

The fields are declared by `fields.about`. A written file has a comment for each field; reading it
raises an error for each wrong field.

Decision: infra/decisions/0177 (why not pydantic, msgspec or cattrs).
"""

import io
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, TypeVar

from ruamel.yaml import YAML

from holdfast.jobs.file.fields import read_durations
from holdfast.support.errors import InputError

Entry = TypeVar("Entry")
_REST = "\n# Other fields with their defaults:\n"


@dataclass(frozen=True, kw_only=True)
class FileKind(Generic[Entry]):
    """One kind of files."""

    entry: type[Entry]
    """The dataclass of what a file describes; its checks raise InputError."""
    schema: str
    schema_file: str
    command: str
    """The command that writes such a file, as `holdfast new-job`."""

    def describes(self, document: Any) -> bool:
        """Return whether a document is of this kind, in any version."""
        family = self.schema.partition("/")[0]
        return isinstance(document, dict) and str(document.get("schema", "")).startswith(
            f"{family}/"
        )

    def find(self, documents: Sequence[Any], path: Path) -> dict[str, Any] | None:
        """Return the document of this kind in a file, or None if the file has none.

        Raises InputError for one next to another document, which nothing would start.
        """
        matches = [document for document in documents if self.describes(document)]
        if not matches:
            return None
        if len(documents) > 1:
            raise InputError(
                f"{path}: more than a {self.noun}",
                got=f"{len(documents)} documents, {len(matches)} of them {self.noun}s",
                allowed="one document",
                fix=f"give each {self.noun} a file of its own",
            )
        return matches[0]

    def parse(self, document: Mapping[str, Any], source: str) -> Entry:
        """Return the entry of a document. Raises InputError, which names the file and the field."""
        if document.get("schema") != self.schema:
            raise InputError(
                f"{source}: schema",
                got=document.get("schema"),
                allowed=self.schema,
                fix=f"write it again with `{self.command}`",
            )
        names = [field.name for field in self.fields]
        values: dict[str, Any] = {}
        for key, value in document.items():
            if key == "schema":
                continue
            if key not in names:
                raise self._unknown_field(source, key, names)
            values[key] = tuple(value) if isinstance(value, list) else value
        missing = [name for name in self.names_without_default if name not in values]
        if missing:
            raise self._missing_fields(source, missing)
        try:
            read_durations(self.fields, values)
            return self.entry(**values)
        except InputError as error:
            raise InputError(
                f"{source}: {error.what}",
                got=error.got,
                allowed=error.allowed,
                fix=error.fix,
            ) from error

    @property
    def noun(self) -> str:
        """Return `job` or `service`."""
        return self.schema.partition("/")[0].rpartition(".")[2]

    @property
    def fields(self) -> tuple[Field[Any], ...]:
        return fields(self.entry)  # pyright: ignore[reportArgumentType]

    @property
    def names_without_default(self) -> list[str]:
        return [field.name for field in self.fields if _default(field) is MISSING]

    def dump(self, entry: Any, head: str, *, always: Collection[str] = ()) -> str:
        """Return a short file: the fields that differ from their default, and those of `always`.

        The other fields follow as comments.
        """
        values = asdict(entry)
        text = head
        comments = _REST
        for field in self.fields:
            value = values[field.name]
            lines = _dump_field(field.name, value)
            about = f"# {field.metadata['about']}\n"
            if field.name in always or value != _default(field):
                text += about + lines
            else:
                commented = "".join(f"#   {line}\n" for line in lines.splitlines())
                comments += about + commented
        return text + comments

    def _unknown_field(self, source: str, key: Any, names: list[str]) -> InputError:
        matches = get_close_matches(str(key), names, n=1)
        return InputError(
            f"{source}: unknown field",
            got=key,
            allowed=", ".join(names),
            fix=f"did you mean {matches[0]}?" if matches else f"see {self.schema_file}",
        )

    def _missing_fields(self, source: str, missing: list[str]) -> InputError:
        return InputError(
            f"{source}: {'a field is' if len(missing) == 1 else 'fields are'} missing",
            got=f"no {', no '.join(missing)}",
            allowed=f"a file with {', '.join(self.names_without_default)}",
            fix=f"add {', '.join(missing)}; `{self.command}` writes a whole file",
        )


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def read_option(value: Any, kind: str | list[str]) -> Any:
    """Convert a text of the command line as YAML would; the checks judge what does not convert."""
    if not isinstance(value, str):
        return value
    if kind == "array":
        return value.split(",")
    if "boolean" in kind:
        return {"true": True, "false": False}.get(value, value)
    if "integer" in kind and re.fullmatch("-?[0-9]{1,9}", value):
        return int(value)
    if "number" in kind and re.fullmatch("-?[0-9]{1,9}([.][0-9]{1,9})?", value):
        return float(value)
    return value


def _dump_field(key: str, value: Any) -> str:
    yaml = YAML()
    stream = io.StringIO()
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    if isinstance(value, tuple):
        value = list(value)
    yaml.dump({key: value}, stream)
    return stream.getvalue()
