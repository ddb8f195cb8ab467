"""A process that stops itself between the look at the fence and the write of its commit.

`python -m ... FOLDER STEP`: takes the fence of the run and commits a step without tensors. Prints
`committed` or `fenced`.
"""

import os
import signal
import sys
from unittest.mock import patch

from holdfast.checkpoint.errors import Fenced
from holdfast.checkpoint.format import fence
from holdfast.checkpoint.stores.local import LocalStorage
from workloads.library.tests.checkpoint.saves.starts import RUN, commit_step

check = fence.check


def check_and_stop(storage: LocalStorage, run: str, number: int) -> None:
    check(storage, run, number)
    os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    storage = LocalStorage.open(sys.argv[1])
    number = fence.take(storage, RUN)
    with patch.object(fence, "check", check_and_stop):
        try:
            commit_step(storage, int(sys.argv[2]), number)
        except Fenced:
            print("fenced")
            return
    print("committed")


main()
