"""Unpacks the source of a job into a folder, in its pod.

The text of this module is the command of a container of the job's own image, so it takes nothing
but the standard library of Python 3.8 and later.
"""

import gzip
import hashlib
import io
import sys
import tarfile
from pathlib import Path


def main(archive: str, digest: str, folder: str) -> None:
    unpacked = gzip.decompress(Path(archive).read_bytes())
    actual = hashlib.sha256(unpacked).hexdigest()
    if actual != digest:
        sys.exit(f"holdfast: the source of this job is sha256:{actual}, expected sha256:{digest}")
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(folder)
    print(f"holdfast: unpacked the source sha256:{digest} to {folder}")
