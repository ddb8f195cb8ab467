"""Who a process works for: one identity from the manifest to the alert, the receipt and `explain`.

`job` is the name of the Job, JobSet or Deployment in Kubernetes. Where each index of an Indexed Job
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

LABEL_HOLDFAST_JOB = "holdfast.dev/job"
"""On pods: the job whose lines they may write."""
LABEL_RUN_PER_INDEX = "holdfast.dev/run-per-index"
"""On pods, `true`: each index of their Job trains apart."""
# What rendered jobs have behind their names: eight digits of the template's digest.
_VERSION = re.compile(r"-[0-9a-f]{8}$")


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class JobIdentity:
    namespace: str = ""
    """Empty where a source does not know it. Two jobs of one name in two namespaces are two."""
    job: str
    index: int | None = None
    """None: the job is one run."""
    attempt: int = 0
    """Launches of the run before this one."""

    @property
    def run(self) -> str:
        return run_name(self.job, self.index)

    @classmethod
    def of_run(cls, run: str, environ: Mapping[str, str] = os.environ) -> Self:
        """The identity of a process that works on `run`; outside Kubernetes the run is the job."""
        job = environ.get(ENV_JOB) or run
        index = environ.get(ENV_COMPLETION_INDEX, "")
        apart = is_count(index) and run in (
            run_name(each, int(index)) for each in (job, _VERSION.sub("", job))
        )
        return cls(
            job=job,
            index=int(index) if apart else None,
            attempt=attempt_of(environ),
        )

    def fields(self) -> dict[str, object]:
        """What an event line carries of it; the attempt is in `start`."""
        if self.index is None:
            return {"job": self.job}
        return {"job": self.job, "index": self.index}


def attempt_of(environ: Mapping[str, str] = os.environ) -> int:
    """Starts of the run before this one: a count, or several joined by `+`, since a manifest cannot
    add up. Else 0.
    """
    counts = environ.get(ENV_ATTEMPT, "").split("+")
    return sum(int(each) for each in counts if is_count(each))


def is_count(text: str) -> bool:
    """ASCII digits, and few enough for a number that a person means."""
    return text.isascii() and text.isdecimal() and len(text) <= 9


def run_name(job: str, index: int | None) -> str:
    return job if index is None else f"{job}-{index}"
