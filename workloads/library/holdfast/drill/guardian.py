"""Kills the pods of a process that ended without doing so itself, for example by SIGKILL.

The guardian waits for the end of its standard input, which the process that starts pods holds open.
It has a session of its own: a signal to the group of that process must not end both.
"""

import functools
import os
import sys
import uuid

GUARDED = "HOLDFAST_POD_GUARDED"
"""Environment variable of pods: name of the guard of the process that started them."""
# A guardian that only waits needs little memory, so it imports the rest after its wait.
_START = """
import sys

sys.stdin.buffer.read()
from holdfast.drill.pods import clear_orphans

clear_orphans(sys.argv[1])
"""


def guard_pods() -> str:
    """Returns the value of GUARDED for pods of this process, and starts its guardian once."""
    return _start_guardian(os.getpid())


@functools.cache
def _start_guardian(pid: int) -> str:
    name = f"{pid}-{uuid.uuid4().hex}"
    # The guardian of a drill inside a pod must not be killed with that pod.
    variables = {key: value for key, value in os.environ.items() if key != GUARDED}
    # The write end stays open until this process ends.
    read_end, _ = os.pipe()
    # Not a Popen, which warns at the exit of this process that the guardian still runs.
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", _START, name],
        variables,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, read_end, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    os.close(read_end)
    return name
