"""The file that an export goes to: JSON lines or Parquet, on a disk or in a bucket."""

import contextlib
import tempfile
from pathlib import Path

from psycopg import Connection

from holdfast.inference.files import BUCKET_SCHEME, upload
from holdfast.inference.results.export import export_lines
from holdfast.support.errors import InputError, unusable

PARQUET = ".parquet"


def export(connection: Connection, job: str, out: str) -> int:
    """Writes `out` atomically and returns the number of rows."""
    if not out.startswith(BUCKET_SCHEME):
        if not Path(out).name:
            raise _make_name_error(out)
        return _export_to_disk(connection, job, Path(out))
    bucket, _, name = out.removeprefix(BUCKET_SCHEME).partition("/")
    if not bucket or not name or name.endswith("/"):
        raise _make_name_error(out)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, Path(name).name)
        count = _export_to_disk(connection, job, path)
        upload(path, out)
    return count


def _make_name_error(out: str) -> InputError:
    return InputError(
        "the export has no name",
        got=repr(out),
        allowed="FOLDER/FILE or gs://BUCKET/FOLDER/FILE",
        fix="add the name of a file, such as results.parquet",
    )


def _export_to_disk(connection: Connection, job: str, path: Path) -> int:
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == PARQUET:
            # Imported here: Arrow takes a second.
            from holdfast.inference.results.parquet_export import export_parquet

            count = export_parquet(connection, job, partial)
        else:
            count = export_lines(connection, job, partial)
        partial.replace(path)
    except OSError as error:
        raise unusable(error, path) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    return count
