"""Names TensorBoard's event files, which it reads in the order of their names.

Its own writer takes the second and the process id: of two starts in one second, or on machines
whose clocks differ, the later one may come first, and its points would be purged by the earlier.
"""

import re
from collections.abc import Iterable

_PREFIX = "events.out.tfevents."
_NUMBER = re.compile(r"tfevents\.(\d{10})\.")


class EventNames:
    """Names files so that each comes after all that were there, and after those named before."""

    def __init__(self, present: Iterable[str]) -> None:
        """`present`: names of the files that earlier starts have left."""
        self._newest_number = 0
        for name in present:
            match = _NUMBER.search(name)
            if match:
                self._newest_number = max(self._newest_number, int(match[1]))

    def make(self, name: str, now_s: float) -> str:
        """Returns the name for a file that the writer called `name`; `now_s` in Unix seconds."""
        self._newest_number = max(int(now_s), self._newest_number + 1)
        return f"{_PREFIX}{self._newest_number:010d}.{name.removeprefix(_PREFIX)}"
