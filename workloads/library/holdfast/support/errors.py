"""The errors of the library: one root, and the one error a user sees: what is wrong, what was got,
what is allowed, the fix.

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
    """Root of all: `except HoldfastError` takes what the library raises, and no bug of the caller's
    own code.
    """


class InputError(HoldfastError, ValueError):
    """Bad input at the border, in four short lines."""

    code = EXIT_BAD_INPUT
    """Of a process that ends for it."""

    def __init__(self, what: str, *, got: object, allowed: str, fix: str) -> None:
        self.what = what
        self.got = str(got)
        self.allowed = allowed
        self.fix = fix
        super().__init__(f"{what}: got {self.got}; allowed: {allowed}; fix: {fix}")

    def __reduce__(
        self,
    ) -> tuple[Callable[..., "InputError"], tuple[type["InputError"], str, str, str, str]]:
        # Keywords only cannot be pickled by default; torch sends a rank's error to the others that
        # way.
        return _again, (type(self), self.what, self.got, self.allowed, self.fix)

    def lines(self) -> str:
        what, got, allowed, fix = (
            printable(text, 2_000) for text in (self.what, self.got, self.allowed, self.fix)
        )
        return f"error:   {what}\n  got:     {got}\n  allowed: {allowed}\n  fix:     {fix}"


class Stopped(InputError):
    """A safety rule stopped the command before it changed anything."""

    code = EXIT_STOPPED


class Later(InputError):
    """A disk or a service refuses for now: the same command may work later."""

    code = EXIT_RETRY


def _again(
    kind: type[InputError],
    what: str,
    got: str,
    allowed: str,
    fix: str,
) -> InputError:
    return kind(what, got=got, allowed=allowed, fix=fix)


class Unjudged(HoldfastError, RuntimeError):
    """A tool, a service or access is missing, so no verdict is possible; the text names it."""

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


_OF_A_PATH = {
    errno.EACCES,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}


_OF_SPACE = {errno.ENOSPC, errno.EDQUOT}


def unusable_path(error: OSError) -> InputError | None:
    """What to answer where the system refuses a path of the command line, or has no room; None for
    every other trouble.
    """
    of_path = error.filename is not None and (error.errno in _OF_A_PATH or _makes_no_folders(error))
    if of_path or error.errno in _OF_SPACE:
        return unusable(error, error.filename)
    return None


def unusable(error: OSError, path: object) -> InputError:
    """Of any trouble with a path of the command line."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    got = f"{str(path)[:200]}: {reason}" if path else reason
    if error.errno in _OF_SPACE:
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
    """/proc and the like call a folder that they will not make one that is not there; elsewhere a
    file is in its place.
    """
    return error.errno in (errno.ENOENT, errno.EEXIST) and any(
        frame.name == "mkdir" for frame in traceback.extract_tb(error.__traceback__)
    )


def missing_program(error: OSError) -> str:
    """The program that was to be started and is not installed; empty for a file that is not there."""
    started = any(
        frame.filename == subprocess.__file__ for frame in traceback.extract_tb(error.__traceback__)
    )
    return str(error.filename) if started and error.errno == errno.ENOENT else ""


def run_cli(command: Callable[[], object]) -> None:
    """Run a command and turn what a user can fix into its exit code instead of a traceback."""
    try:
        command()
    except InputError as error:
        _end_as_bad_input(error)
    except Unjudged as error:
        _end_as_unjudged(error)
    except BrokenPipeError:
        # `| head` has seen enough. Whatever is still buffered must find a place, or Python
        # complains at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(EXIT_DONE)
    except Exception as error:  # noqa: BLE001  # the top level: Python's own exit code 1 would mean findings
        if isinstance(error, OSError) and (program := missing_program(error)):
            _end_as_unjudged(Unjudged(f"the program {program} is not installed, or not on PATH"))
        refused = unusable_path(error) if isinstance(error, OSError) else None
        if refused:
            _end_as_bad_input(refused)
        # Only who has started a process group has peers: to all others such a message is a bug like
        # any other.
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


def _end_as_lost_peer(error: Exception) -> NoReturn:
    if os.environ.get(ENV_TRACEBACK):
        traceback.print_exception(error)
    reason, _, _advice = str(error).partition(" This is typically")
    message = printable(" ".join(reason.split())[:300])
    print(f"lost:    another process of this job is gone: {message}", file=sys.stderr)
    print(
        f"  next:    start this one again; it ends with {EXIT_RETRY}, so that its launcher does",
        file=sys.stderr,
    )
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    sys.stdout.flush()
    sys.stderr.flush()
    # At the interpreter's end torch would take down a broken group: that aborts the process now and
    # then, or hangs.
    os._exit(EXIT_RETRY)


def _report_bug(error: Exception) -> None:
    """In a pod with its traceback: there is no second run to ask for one."""
    if os.environ.get(ENV_TRACEBACK) or os.environ.get(ENV_JOB):
        traceback.print_exception(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    message = printable(" ".join(str(error).split())[:300])
    print(
        f"internal error: {type(error).__name__}: {message} ({last.filename}, line {last.lineno})",
        file=sys.stderr,
    )
    where = "the issue tracker of the repository that you installed this from"
    print(
        f"a bug in holdfast: report it to {where}, with what {ENV_TRACEBACK}=1 shows",
        file=sys.stderr,
    )
