"""Tasks in forks of this process, which has imported what they need: lanes of a bench, places of an
elastic gang.
"""

import os
import threading
import traceback
from collections.abc import Callable

from workloads.library.tests.fork_server import Forked, die_with

FAILED = 71  # no exit code of a task: the fork itself went wrong


class Fork(Forked):
    def __init__(self, task: Callable[[], object]) -> None:
        assert threading.active_count() == 1, "a fork takes along one thread only"
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            try:
                die_with(parent)
                task()
                os._exit(0)
            except Exception:  # noqa: BLE001  # the child's top level
                traceback.print_exc()
            finally:
                os._exit(FAILED)

    def code(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None
