"""Identifies the job of a process, from the manifest to the alert, the receipt and `explain`.

`job` is the name of the Job, JobSet or Deployment in Kubernetes. If each index of an Indexed Job
trains apart, tables name its run `<job>-<index>`; the pods of a gang share one run, which is the
job's name. In the storage a run has the name without the digest of the job's template, so that the
job of the next image resumes it (infra/decisions/0068).
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from holdfast.vocabulary.environment import ENV_ATTEMPT, ENV_COMPLETION_INDEX, ENV_JOB

SOURCE_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
"""Matches the digest of the code of a job."""
LABEL_HOLDFAST_JOB = "holdfast.dev/job"
"""Label of pods: the job whose lines they may write."""
LABEL_RUN_PER_INDEX = "holdfast.dev/run-per-index"
"""Label of pods: `true` if each index of their Job trains apart."""
# Rendered jobs have eight digits of the template's digest at the end of their names.
_VERSION = re.compile(r"-[0-9a-f]{8}$")


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class JobIdentity:
    namespace: str = ""
    """Empty if a source does not know it. Jobs of one name in two namespaces are different."""
    job: str
    index: int | None = None
    """None: the job is one run."""
    attempt: int = 0
    """Number of earlier launches of the run."""

    @property
    def run(self) -> str:
        return run_name(self.job, self.index)

    @classmethod
    def of_run(cls, run: str, environ: Mapping[str, str] = os.environ) -> Self:
        """Returns the identity of a process that works on `run`.

        Outside Kubernetes the run is the job.
        """
        job = environ.get(ENV_JOB) or run
        text = environ.get(ENV_COMPLETION_INDEX, "")
        index: int | None = None
        if is_count(text):
            job_in_storage = _VERSION.sub("", job)
            runs_by_index = (run_name(job, int(text)), run_name(job_in_storage, int(text)))
            if run in runs_by_index:
                index = int(text)
        return cls(
            job=job,
            index=index,
            attempt=read_attempt(environ),
        )

    def fields(self) -> dict[str, object]:
        """Returns its fields in an event line; only `start` also has the attempt."""
        if self.index is None:
            return {"job": self.job}
        return {"job": self.job, "index": self.index}


def read_attempt(environ: Mapping[str, str] = os.environ) -> int:
    """Returns the number of earlier starts of the run; 0 if it is unknown.

    The variable holds a count, or several joined by `+`, because a manifest cannot add up.
    """
    counts = environ.get(ENV_ATTEMPT, "").split("+")
    return sum(int(count) for count in counts if is_count(count))


def read_source(value: object) -> str:
    """Returns the digest of a job's code from a variable or annotation; empty for another text."""
    return value if isinstance(value, str) and SOURCE_DIGEST.fullmatch(value) else ""


def is_count(text: str) -> bool:
    """Returns whether the text is a number of at most nine ASCII digits."""
    return text.isascii() and text.isdecimal() and len(text) <= 9


def run_name(job: str, index: int | None) -> str:
    return job if index is None else f"{job}-{index}"
