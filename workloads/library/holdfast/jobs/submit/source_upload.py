"""Puts the source of a job into its bucket, with the rights of the user's gcloud."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.clients import gcloud
from holdfast.jobs.source.archive import Upload
from holdfast.support.errors import Unjudged
from holdfast.support.progress import working

TIMEOUT_S = 600.0


def upload(uploads: Sequence[Upload], report: Callable[[str], object]) -> None:
    """Upload archives that their bucket does not have yet; each is named by its digest.

    Raises Unjudged if gcloud is missing or may not write there; no object was sent then.
    """
    for entry in uploads:
        report(f"uploads the source to {entry.url}")
        with tempfile.TemporaryDirectory(prefix="holdfast-source-") as folder:
            file = Path(folder, "source.tar.gz")
            file.write_bytes(entry.data)
            copy = ("storage", "cp", "--no-clobber", str(file), entry.url)
            try:
                with working("upload the source"):
                    gcloud.run(copy, timeout_s=TIMEOUT_S)
            except gcloud.GcloudFailed as error:
                raise Unjudged(
                    f"the source was not uploaded to {entry.url}, and nothing was started: {error};"
                    " you need roles/storage.objectUser there, or less than 1 MiB of packed code"
                ) from error
