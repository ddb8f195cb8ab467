"""The forms that texts of a job file have, and what they mean."""

import re
from dataclasses import dataclass

from holdfast.place.job import parse_accelerator
from holdfast.support.errors import InputError

# A child Job, an index of three digits and the pod's suffix come behind it, and a pod's name is its
# host name.
MAX_NAME = 34
MAX_GPUS = 8
LONGEST_TEXT = 4096
DATA = "/data"


@dataclass(frozen=True, slots=True)
class Form:
    """A text by a pattern, and what an error says about another one."""

    pattern: str
    allowed: str
    fix: str
    longest: int = LONGEST_TEXT

    def matched(self, what: str, got: object) -> str:
        """The text. InputError names `what`."""
        if not isinstance(got, str) or not re.fullmatch(self.pattern, got):
            raise InputError(
                what,
                got=repr(got),
                allowed=self.allowed,
                fix=self.fix,
            )
        if len(got) > self.longest:
            long = f"{got} ({len(got)} characters)"
            raise InputError(
                f"{what} is too long",
                got=long,
                allowed=f"{self.longest} characters",
                fix="shorten it",
            )
        return got


_NAME = (
    "[a-z]([-a-z0-9]*[a-z0-9])?",
    "a-z, 0-9 and '-', beginning with a letter, not ending with '-'",
    "choose another name",
)
NAME = Form(*_NAME, longest=MAX_NAME)
CLAIM = Form(*_NAME, longest=63)
GPUS = Form(
    "[1-9][0-9]*x[A-Za-z0-9 ._-]+", "COUNTxGPU, as 1xl4 or 8xa100-80gb; none", "write it as 8xa100"
)
BUCKET = Form(
    "gs://[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9](/[^*?\\[\\]#,\"'\\s]*)?",
    "gs://BUCKET or gs://BUCKET/FOLDER",
    "write the bucket with gs://",
)
SECRET = Form(
    "[A-Za-z0-9_-]{1,255}(/(latest|[1-9][0-9]*))?",
    "NAME or NAME/VERSION of Secret Manager",
    "`gcloud secrets list`",
)
SIZE = Form("[1-9][0-9]{0,4}(Mi|Gi)", "a size as 512Mi or 32Gi", "write it with its unit")
TEXT = Form(
    "[^\\x00-\\x08\\x0b-\\x1f\\x7f]*",
    "text without control characters",
    "put it into a file of the image",
)
# Not what the platform sets itself: it would part a process from its job, its window or its peers.
VARIABLE = Form(
    "(?!HOLDFAST_|PET_|JOB_COMPLETION_INDEX)[A-Za-z_][A-Za-z0-9_]{0,127}",
    "letters, digits and '_', and no name that the platform sets",
    "rename it, or leave it out",
)
# Where the platform mounts.
_TAKEN = ("/tmp", "/dev", DATA, "/run", "/var/run", "/proc", "/sys", "/etc", "/bin", "/usr", "/lib")
PATH = Form(
    f"(?!.*[.][.])(?!({'|'.join(_TAKEN)})(/|$))/[A-Za-z0-9._/-]{{1,200}}",
    f"an absolute path of letters, digits, '.', '_' and '-', none below {', '.join(_TAKEN)}",
    "as /mnt/models",
)


def gpus(got: object) -> tuple[int, str]:
    """`8xa100` -> 8 and the accelerator's label."""
    count, _, kind = GPUS.matched("gpus", got).partition("x")
    if len(count) > 2 or int(count) > MAX_GPUS:
        fix = f"take {MAX_GPUS} on each node, and more --nodes"
        raise InputError(
            "GPUs of a node",
            got=count,
            allowed=f"1 to {MAX_GPUS}",
            fix=fix,
        )
    return int(count), parse_accelerator(kind)


def bucket(field: str, got: object) -> tuple[str, str]:
    """`gs://b/a/c/` -> `b` and `a/c`."""
    head, _, folder = BUCKET.matched(field, got).removeprefix("gs://").partition("/")
    return head, folder.strip("/")


def secret(got: str) -> tuple[str, str]:
    """`hf/3` -> `hf` and `3`."""
    head, _, version = got.partition("/")
    return head, version or "latest"
