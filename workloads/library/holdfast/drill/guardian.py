"""Kills the pods of a process that ended without doing so itself, for example by SIGKILL.

The guardian waits for the end of its standard input, which the process that starts pods holds open.
It has a session of its own: a signal to the group of that process must not end both.
"""

import functools
import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass

GUARDED = "HOLDFAST_POD_GUARDED"
"""Environment variable of pods: name of the guard of the process that started them."""
_EXEC_S = 1.0
"""A child between fork and exec does not have the variable yet."""
_START = "import sys; from holdfast.drill.guardian import watch; watch(sys.argv[1])"


@dataclass(frozen=True)
class _Guard:
    name: str
    guardian: "subprocess.Popen[bytes]"
    """Its standard input stays open until this process ends."""


def guard_pods() -> str:
    """Returns the value of GUARDED for pods of this process, and starts its guardian once."""
    return _start_guardian(os.getpid()).name


@functools.cache
def _start_guardian(pid: int) -> _Guard:
    name = f"{pid}-{uuid.uuid4().hex}"
    # The guardian of a drill inside a pod must not be killed with that pod.
    variables = {key: value for key, value in os.environ.items() if key != GUARDED}
    guardian = subprocess.Popen(
        [sys.executable, "-c", _START, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=variables,
        start_new_session=True,
    )
    return _Guard(name, guardian)


def watch(name: str) -> None:
    """Waits for the end of the process that starts pods, and kills those that it left."""
    sys.stdin.buffer.read()
    # A guardian that only waits needs little memory.
    from holdfast.drill.pods import clear_guarded

    clear_guarded(name)
    time.sleep(_EXEC_S)
    clear_guarded(name)
