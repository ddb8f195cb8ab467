"""Reads the number of nodes of a job: `8`, or `4..8` for a gang that goes on with fewer."""

import re

from holdfast.support.errors import InputError

PATTERN = "[0-9]{1,4}\\.\\.[0-9]{1,4}"


def parse(got: object, limit: int) -> tuple[int, int]:
    """Reads `4..8` as 4 and 8, and 3 as 3 and 3. Raises InputError."""
    if not isinstance(got, str):
        return _whole(got, limit)
    allowed = f"a whole number from 1 to {limit}, or MIN..MAX of such numbers with MIN below MAX"
    if not re.fullmatch(PATTERN, got):
        raise InputError(
            "nodes",
            got=repr(got),
            allowed=allowed,
            fix="write 4..8, or a number without quotes",
        )
    smallest, largest = (int(number) for number in got.split(".."))
    if 1 <= smallest < largest <= limit:
        return smallest, largest
    ends = (_clamp(smallest, limit), _clamp(largest, limit))
    low, high = sorted(ends)
    raise InputError(
        "nodes",
        got=got,
        allowed=allowed,
        fix=f"write {low}..{high}" if low < high else f"write {low}",
    )


def _clamp(number: int, limit: int) -> int:
    return min(max(number, 1), limit)


def _whole(got: object, limit: int) -> tuple[int, int]:
    if not isinstance(got, int) or isinstance(got, bool) or not 1 <= got <= limit:
        raise InputError(
            "nodes",
            got=repr(got),
            allowed=f"a whole number from 1 to {limit}",
            fix="write such a number",
        )
    return got, got
