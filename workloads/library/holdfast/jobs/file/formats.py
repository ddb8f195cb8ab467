"""Defines the formats of texts in a job file, and parses them."""

import re
from dataclasses import dataclass

from holdfast.place.job import parse_accelerator
from holdfast.support.errors import InputError

# The suffixes of a child Job, of an index with three digits and of the pod follow the name, and a
# pod's name is its host name.
MAX_NAME = 34
MAX_GPUS = 8
ANY_OF = "any of "
LONGEST_TEXT = 4096
DATA = "/data"
SOURCE = "/source"


@dataclass(frozen=True, slots=True)
class Form:
    """A pattern for a text, with the words of the error about a text that does not match."""

    pattern: str
    allowed: str
    fix: str
    longest: int = LONGEST_TEXT

    def match(self, field: str, text: object) -> str:
        """Return the text. Raises InputError, which names the field, if it does not match."""
        if not isinstance(text, str) or not re.fullmatch(self.pattern, text):
            raise InputError(
                field,
                got=repr(text),
                allowed=self.allowed,
                fix=self.fix,
            )
        if len(text) > self.longest:
            raise InputError(
                f"{field} is too long",
                got=f"{text} ({len(text)} characters)",
                allowed=f"{self.longest} characters",
                fix="shorten it",
            )
        return text


_NAME = (
    "[a-z]([-a-z0-9]*[a-z0-9])?",
    "a-z, 0-9 and '-', beginning with a letter, not ending with '-'",
    "choose another name",
)
NAME = Form(*_NAME, longest=MAX_NAME)
CLAIM = Form(*_NAME, longest=63)
_GPU = "[1-9][0-9]*x[A-Za-z0-9 ._-]+"
ONE_GPU = Form(_GPU, "COUNTxGPU, as 1xl4 or 8xa100-80gb", "write it as 8xa100")
GPUS = Form(
    f"{_GPU}|any of {_GPU}(, ?{_GPU}){{1,2}}",
    "COUNTxGPU, as 1xl4 or 8xa100-80gb; any of 1xl4, 1xa100; none",
    "write it as 8xa100",
)
BUCKET = Form(
    "gs://[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9](/[^*?\\[\\]#,\"'\\s]*)?",
    "gs://BUCKET or gs://BUCKET/FOLDER",
    "write gs:// and the bucket, whose name has 3 to 63 characters",
)
SECRET = Form(
    "[A-Za-z0-9_-]{1,255}(/(latest|[1-9][0-9]*))?",
    "NAME or NAME/VERSION of Secret Manager",
    "`gcloud secrets list`",
)
SIZE = Form("[1-9][0-9]{0,4}(Mi|Gi)", "a size as 512Mi or 32Gi", "write it with its unit")
CACHE = Form(
    "[1-9][0-9]{0,4}(Mi|Gi)( memory)?", "a size as 50Gi, or 20Gi memory", "write it with its unit"
)
_COLUMN = "[^\\s,\"'\\x00-\\x1f]+"
ROWS = Form(
    f"[A-Za-z0-9._*-]*[.](jsonl|parquet)( {_COLUMN}( {_COLUMN})?)?",
    "FILE or PATTERN ending in .jsonl or .parquet, then the column of ids and that of contents",
    "as `*.parquet id prompt`",
    longest=400,
)
TEXT = Form(
    "[^\\x00-\\x08\\x0b-\\x1f\\x7f]*",
    "text without control characters",
    "put it into a file of the image",
)
# A name that the platform sets is refused: another value would separate a process from its job,
# its window or its peers.
VARIABLE = Form(
    "(?!HOLDFAST_|PET_|JOB_COMPLETION_INDEX)[A-Za-z_][A-Za-z0-9_]{0,127}",
    "letters, digits and '_', and no name that the platform sets",
    "rename it, or leave it out",
)
# The folders at which the platform mounts.
_RESERVED_FOLDERS = (
    "/tmp",
    "/dev",
    DATA,
    SOURCE,
    "/run",
    "/var/run",
    "/proc",
    "/sys",
    "/etc",
    "/bin",
    "/usr",
    "/lib",
)
PATH = Form(
    f"(?!.*[.][.])(?!({'|'.join(_RESERVED_FOLDERS)})(/|$))/[A-Za-z0-9._/-]{{1,200}}",
    "an absolute path of letters, digits, '.', '_' and '-', none below"
    f" {', '.join(_RESERVED_FOLDERS)}",
    "as /mnt/models",
)


def parse_gpus(text: object) -> list[tuple[int, str]]:
    """Split `8xa100` into 8 and the accelerator's label; `any of` has several such pairs.

    Raises InputError for an unknown GPU, and for a choice of unequal numbers or of one GPU.
    """
    choices = [_parse_choice(part) for part in _split_choices(GPUS.match("gpus", text))]
    counts = {count for count, _ in choices}
    kinds = {kind for _, kind in choices}
    if len(counts) > 1 or len(kinds) < len(choices):
        raise InputError(
            "gpus: any of",
            got=text,
            allowed="the same number of each, and each kind once",
            fix="as any of 1xl4, 1xa100",
        )
    return choices


def parse_gpu(text: object) -> tuple[int, str]:
    """Split `8xa100` into 8 and the accelerator's label. Raises InputError, for a choice too."""
    return _parse_choice(ONE_GPU.match("gpu", text))


def _split_choices(text: str) -> list[str]:
    return [part.strip() for part in text.removeprefix(ANY_OF).split(",")]


def _parse_choice(text: str) -> tuple[int, str]:
    count, _, kind = text.partition("x")
    if len(count) > 2 or int(count) > MAX_GPUS:
        raise InputError(
            "GPUs of a node",
            got=count,
            allowed=f"1 to {MAX_GPUS}",
            fix=f"take {MAX_GPUS} on each node, and more --nodes",
        )
    return int(count), parse_accelerator(kind)


def parse_size_mib(size: str) -> int:
    """Return a size of the form SIZE in MiB."""
    return int(size[:-2]) * (1024 if size.endswith("Gi") else 1)


def parse_bucket(field: str, url: object) -> tuple[str, str]:
    """Split `gs://b/a/c/` into `b` and `a/c`."""
    path = BUCKET.match(field, url).removeprefix("gs://")
    bucket, _, folder = path.partition("/")
    return bucket, folder.strip("/")


def parse_secret(text: str) -> tuple[str, str]:
    """Split `hf/3` into `hf` and `3`."""
    name, _, version = text.partition("/")
    return name, version or "latest"
