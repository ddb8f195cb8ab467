"""Says which parts a batch needs and its environment does not have."""

from collections.abc import Iterator

from holdfast.jobs.file.job_file import JobSpec
from holdfast.manifests.database import SECRET, SERVICE_FILE
from holdfast.platform import Platform


def list_missing_parts(job: JobSpec, platform: Platform) -> Iterator[str]:
    """Yield a line for each part that is missing: the results database, and Pub/Sub lanes."""
    if not job.predictor:
        return
    if platform.database is None:
        yield (
            f"{platform.name} has no results database: its pods wait for the Secret {SECRET} with"
            f" yours: kubectl -n {job.home} create secret generic {SECRET}"
            f" --from-file={SERVICE_FILE}"
        )
    if not platform.lanes:
        yield f"{platform.name} has no Pub/Sub lane: items queue in the results database"
