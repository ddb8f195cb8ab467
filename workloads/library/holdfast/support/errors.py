"""Defines the errors of the library, and how a command reports them.

A user sees InputError: what is wrong, what was got, what is allowed, the fix.

HoldfastError
├── InputError (ValueError)     bad input: exit code 2
│   ├── Stopped                 a safety rule: exit code 4
│   └── Later                   no room, no answer: exit code 75
├── Unjudged (RuntimeError)     no verdict is possible: exit code 3
└── every other exception class of the library, in its room's errors
"""

import atexit
import errno
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from holdfast.support.lost_peer import says_lost_peer
from holdfast.support.printable import printable
from holdfast.vocabulary.environment import ENV_JOB, ENV_TRACEBACK
from holdfast.vocabulary.exit_codes import (
    EXIT_BAD_INPUT,
    EXIT_BUG,
    EXIT_DONE,
    EXIT_NOT_JUDGED,
    EXIT_RETRY,
    EXIT_STOPPED,
)


class HoldfastError(Exception):
    """The root of all errors of the library; it catches no bug of a caller."""


class InputError(HoldfastError, ValueError):
    """Reports bad input in four short lines."""

    code = EXIT_BAD_INPUT
    """The exit code of a process that ends with this error."""

    def __init__(self, what: str, *, got: object, allowed: str, fix: str) -> None:
        self.what = what
        self.got = str(got)
        self.allowed = allowed
        self.fix = fix
        super().__init__(f"{what}: got {self.got}; allowed: {allowed}; fix: {fix}")

    def __reduce__(
        self,
    ) -> tuple[Callable[..., "InputError"], tuple[type["InputError"], str, str, str, str]]:
        # Keyword-only arguments cannot be pickled by default, and torch pickles a rank's error to
        # send it to the others.
        return _rebuild, (type(self), self.what, self.got, self.allowed, self.fix)

    def lines(self) -> str:
        rows = [
            f"error:   {printable(self.what, 2_000)}",
            f"  got:     {printable(self.got, 2_000)}",
            f"  allowed: {printable(self.allowed, 2_000)}",
            f"  fix:     {printable(self.fix, 2_000)}",
        ]
        return "\n".join(rows)


class Stopped(InputError):
    """Reports that a safety rule stopped the command before it changed anything."""

    code = EXIT_STOPPED


class Later(InputError):
    """Reports a full disk or a busy service: the same command may work later."""

    code = EXIT_RETRY


def _rebuild(
    kind: type[InputError],
    what: str,
    got: str,
    allowed: str,
    fix: str,
) -> InputError:
    return kind(what, got=got, allowed=allowed, fix=fix)


class Unjudged(HoldfastError, RuntimeError):
    """Reports that a tool, a service or access is missing, so that no verdict is possible."""

    def __init__(self, what: str, *, got: str = "", fix: str = "") -> None:
        self.what = what
        self.got = got
        self.fix = fix
        super().__init__(f"{what}: {got}" if got else what)

    def lines(self) -> str:
        shown = "\n".join(printable(line, 2_000) for line in self.what.splitlines())
        text = f"could not judge: {shown}"
        if self.got:
            text += f"\n  got:     {printable(self.got, 2_000)}"
        if self.fix:
            text += f"\n  fix:     {printable(self.fix, 2_000)}"
        return text


_PATH_ERRORS = {
    errno.EACCES,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}

_SPACE_ERRORS = {errno.ENOSPC, errno.EDQUOT}


def unusable_path(error: OSError) -> InputError | None:
    """Returns the report if the system refuses a path of the command line, or has no space.

    It is None for every other error.
    """
    if error.errno in _SPACE_ERRORS:
        return unusable(error, error.filename)
    if error.filename is None:
        return None
    if error.errno in _PATH_ERRORS or _makes_no_folders(error):
        return unusable(error, error.filename)
    return None


def unusable(error: OSError, path: object) -> InputError:
    """Returns the report of an error about a path of the command line."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    got = f"{str(path)[:200]}: {reason}" if path else reason
    if error.errno in _SPACE_ERRORS:
        return Later(
            "the disk is full",
            got=got,
            allowed="a disk with free space",
            fix="free some, and run it again",
        )
    return InputError(
        "the path cannot be used",
        got=got,
        allowed="a path that this user can read or write",
        fix="use another path, or fix its permissions",
    )


def _makes_no_folders(error: OSError) -> bool:
    """Returns whether a folder could not be made.

    /proc and similar report such a folder as missing; elsewhere a file is in its place.
    """
    if error.errno not in (errno.ENOENT, errno.EEXIST):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.name == "mkdir" for frame in frames)


def missing_program(error: OSError) -> str:
    """Returns the program that is not installed; empty if the error is about another file."""
    if error.errno != errno.ENOENT:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    is_start = any(frame.filename == subprocess.__file__ for frame in frames)
    return str(error.filename) if is_start else ""


def run_cli(command: Callable[[], object]) -> None:
    """Runs a command, and turns what a user can fix into an exit code instead of a traceback."""
    try:
        command()
    except InputError as error:
        _end_as_bad_input(error)
    except Unjudged as error:
        _end_as_unjudged(error)
    except BrokenPipeError:
        # `| head` closed the pipe. Python would complain at its end if it could not write what is
        # still buffered.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(EXIT_DONE)
    except Exception as error:  # noqa: BLE001  # the top level: Python's own exit code 1 would mean findings
        if isinstance(error, OSError):
            program = missing_program(error)
            if program:
                unjudged = Unjudged(f"the program {program} is not installed, or not on PATH")
                _end_as_unjudged(unjudged)
            path_error = unusable_path(error)
            if path_error:
                _end_as_bad_input(path_error)
        # Only a process with a process group has peers; otherwise such a message is a bug like any
        # other.
        if "torch.distributed" in sys.modules and says_lost_peer(error):
            _end_as_lost_peer(error)
        _report_bug(error)
        sys.exit(EXIT_BUG)


def _end_as_bad_input(error: InputError) -> NoReturn:
    print(error.lines(), file=sys.stderr)
    sys.exit(error.code)


def _end_as_unjudged(error: Unjudged) -> NoReturn:
    print(error.lines(), file=sys.stderr)
    sys.exit(EXIT_NOT_JUDGED)


def print_lost_peer(error: BaseException) -> None:
    """Prints that a peer was lost; with HOLDFAST_TRACEBACK=1 also where it was noticed."""
    # A time-out may mean that the peer never called this collective: then the program is at fault.
    if os.environ.get(ENV_TRACEBACK) or "Timed out" in str(error):
        traceback.print_exception(error)
    reason, _, _advice = str(error).partition(" This is typically")
    message = printable(" ".join(reason.split())[:300])
    print(f"lost:    another process of this job has ended: {message}", file=sys.stderr)
    print(
        f"  next:    start this one again; it ends with {EXIT_RETRY}, so that its launcher does",
        file=sys.stderr,
    )


def _end_as_lost_peer(error: Exception) -> NoReturn:
    print_lost_peer(error)
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    sys.stdout.flush()
    sys.stderr.flush()
    # At the interpreter's end torch would shut down a broken group, which may abort the process or
    # hang.
    os._exit(EXIT_RETRY)


def _report_bug(error: Exception) -> None:
    """Prints the error; in a pod with its traceback, because no second run could show it."""
    if os.environ.get(ENV_TRACEBACK) or os.environ.get(ENV_JOB):
        traceback.print_exception(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    line = " ".join(str(error).split())
    message = printable(line[:300])
    print(
        f"internal error: {type(error).__name__}: {message} ({last.filename}, line {last.lineno})",
        file=sys.stderr,
    )
    tracker = "the issue tracker of the repository that you installed this from"
    print(
        f"a bug in holdfast: report it to {tracker}, with what {ENV_TRACEBACK}=1 shows",
        file=sys.stderr,
    )
