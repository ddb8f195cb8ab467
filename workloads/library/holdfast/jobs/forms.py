"""Forms of single values of a job file; each raises an InputError that names the field."""

import re
from collections.abc import Collection
from difflib import get_close_matches

from holdfast.contract.errors import InputError
from holdfast.place.job import accelerator

NAME = "[a-z]([-a-z0-9]*[a-z0-9])?"
GPUS = "[1-9][0-9]*x[A-Za-z0-9 ._-]+"
BUCKET = "gs://[a-z0-9][-_.a-z0-9]{1,61}[a-z0-9](/[^*?\\[\\]#,\"'\\s]*)?"
SECRET = "[A-Za-z0-9_-]{1,255}(/(latest|[1-9][0-9]*))?"
SIZE = "[1-9][0-9]{0,4}(Mi|Gi)"
_VARIABLE = "[A-Za-z_][A-Za-z0-9_]{0,127}"
_PATH = "/[A-Za-z0-9._/-]{1,200}"
MAX_GPUS = 8
# What the platform sets itself; another value would part a process from its job, its window or its peers.
RESERVED = ("HOLDFAST_", "PET_", "JOB_COMPLETION_INDEX")
# Where the platform mounts.
TAKEN = ("/tmp", "/dev", "/data", "/run", "/var/run", "/proc", "/sys", "/etc", "/bin", "/usr", "/lib")


def matching(field: str, got: object, pattern: str, allowed: str, fix: str) -> str:
    if not isinstance(got, str) or not re.fullmatch(pattern, got):
        raise InputError(field, got=repr(got), allowed=allowed, fix=fix)
    return got


def name(field: str, got: object, limit: int) -> None:
    allowed = f"1 to {limit} of a-z, 0-9 and '-', beginning with a letter, not ending with '-'"
    matching(field, got, NAME, allowed, "choose another name")
    if len(str(got)) > limit:
        raise InputError(
            f"{field} is too long", got=f"{got} ({len(str(got))} characters)", allowed=allowed, fix="shorten it"
        )


def one_of(field: str, got: object, allowed: Collection[str]) -> None:
    if got not in allowed:
        near = get_close_matches(str(got), list(allowed), n=1, cutoff=0.4)
        fix = f"write {near[0]}" if near else "choose one of these"
        raise InputError(field, got=repr(got), allowed=", ".join(allowed), fix=fix)


def text(field: str, got: object, limit: int, *, empty: bool = True) -> None:
    allowed = f"text of {'0' if empty else '1'} to {limit} characters without control characters"
    ok = isinstance(got, str) and len(got) <= limit and (empty or bool(got))
    if not ok or any(ord(c) < 32 and c not in "\n\t" for c in str(got)) or "\x7f" in str(got):
        raise InputError(
            field, got=repr(got)[:120], allowed=allowed, fix="shorten it, or put it into a file of the image"
        )


def whole(field: str, got: object, low: int, high: int) -> None:
    if not isinstance(got, int) or isinstance(got, bool) or not low <= got <= high:
        raise InputError(
            field, got=repr(got), allowed=f"a whole number from {low} to {high}", fix="write such a number"
        )


def gpus(got: object) -> tuple[int, str]:
    """`8xa100` -> 8 and the accelerator's label."""
    given = matching("gpus", got, GPUS, "COUNTxGPU, as 1xl4 or 8xa100-80gb; none", "write it as 8xa100")
    count, _, kind = given.partition("x")
    if len(count) > 2 or int(count) > MAX_GPUS:
        fix = f"take {MAX_GPUS} on each node, and more --nodes"
        raise InputError("GPUs of a node", got=count, allowed=f"1 to {MAX_GPUS}", fix=fix)
    return int(count), accelerator(kind)


def bucket(field: str, got: object) -> tuple[str, str]:
    """`gs://b/a/c/` -> `b` and `a/c`."""
    given = matching(field, got, BUCKET, "gs://BUCKET or gs://BUCKET/FOLDER", "write the bucket with gs://")
    head, _, folder = given.removeprefix("gs://").partition("/")
    return head, folder.strip("/")


def secret(field: str, got: object) -> tuple[str, str]:
    """`hf/3` -> `hf` and `3`."""
    given = matching(field, got, SECRET, "NAME or NAME/VERSION of Secret Manager", "`gcloud secrets list`")
    head, _, version = given.partition("/")
    return head, version or "latest"


def size(field: str, got: object) -> None:
    matching(field, got, SIZE, "a size as 512Mi or 32Gi", "write it with its unit")


def variable(field: str, got: object) -> None:
    matching(f"{field}: name of a variable", got, _VARIABLE, "letters, digits and '_'", "rename it")
    if str(got).startswith(RESERVED):
        raise InputError(
            f"{field}: {got}", got=got, allowed="a name that the platform does not set", fix="leave it out"
        )


def path(field: str, got: object) -> None:
    matching(f"{field}: path", got, _PATH, "an absolute path of letters, digits, '.', '_' and '-'", "as /mnt/models")
    taken = next((each for each in TAKEN if str(got) == each or str(got).startswith(f"{each}/")), "")
    if taken or ".." in str(got):
        raise InputError(f"{field}: path", got=got, allowed=f"none below {', '.join(TAKEN)}", fix="as /mnt/models")
