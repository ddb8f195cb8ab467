"""How many nodes a job takes, as people write it: `8`, or `4..8` for a gang that goes on with
fewer.
"""

import re

from holdfast.support.errors import InputError

PATTERN = "[0-9]{1,4}\\.\\.[0-9]{1,4}"


def parse(got: object, most: int) -> tuple[int, int]:
    """`4..8` -> 4 and 8; 3 -> 3 and 3. InputError names the field."""
    if not isinstance(got, str):
        return _whole(got, most)
    allowed = f"a whole number from 1 to {most}, or MIN..MAX of such numbers with MIN below MAX"
    if not re.fullmatch(PATTERN, got):
        raise InputError(
            "nodes",
            got=repr(got),
            allowed=allowed,
            fix="write 4..8, or a number without quotes",
        )
    least, largest = map(int, got.split(".."))
    if 1 <= least < largest <= most:
        return least, largest
    low, high = sorted(min(max(number, 1), most) for number in (least, largest))
    raise InputError(
        "nodes",
        got=got,
        allowed=allowed,
        fix=f"write {low}..{high}" if low < high else f"write {low}",
    )


def _whole(got: object, most: int) -> tuple[int, int]:
    if not isinstance(got, int) or isinstance(got, bool) or not 1 <= got <= most:
        raise InputError(
            "nodes",
            got=repr(got),
            allowed=f"a whole number from 1 to {most}",
            fix="write such a number",
        )
    return got, got
