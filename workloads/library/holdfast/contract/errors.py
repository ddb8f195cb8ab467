"""The one error a user sees: what is wrong, what was got, what is allowed, how to mend it."""

import sys
from collections.abc import Callable

from holdfast.contract.exit_codes import EXIT_BAD_INPUT, EXIT_NOT_JUDGED
from holdfast.contract.printable import printable


class InputError(ValueError):
    """Bad input at the border, in four short lines."""

    def __init__(self, what: str, *, got: object, allowed: str, fix: str) -> None:
        self.what, self.got, self.allowed, self.fix = what, str(got), allowed, fix
        super().__init__(f"{what}: got {self.got}; allowed: {allowed}; fix: {fix}")

    def __reduce__(self) -> tuple[Callable[..., "InputError"], tuple[str, str, str, str]]:
        # Keywords only cannot be pickled by default; torch sends a rank's error to the others that way.
        return _again, (self.what, self.got, self.allowed, self.fix)

    def lines(self) -> str:
        what, got, allowed, fix = (printable(text, 2_000) for text in (self.what, self.got, self.allowed, self.fix))
        return f"error:   {what}\n  got:     {got}\n  allowed: {allowed}\n  fix:     {fix}"


def _again(what: str, got: str, allowed: str, fix: str) -> InputError:
    return InputError(what, got=got, allowed=allowed, fix=fix)


class Unjudged(RuntimeError):
    """A tool, a service or access is missing, so no verdict is possible; the text names it."""


def run_cli(command: Callable[[], object]) -> None:
    """Run a command and turn what a user can mend into its exit code instead of a traceback."""
    try:
        command()
    except InputError as error:
        print(error.lines(), file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)
    except Unjudged as error:
        print(f"could not judge: {error}", file=sys.stderr)
        sys.exit(EXIT_NOT_JUDGED)
