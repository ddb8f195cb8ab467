"""Starts a program once for each GPU of a node, for elastic gangs: `holdfast train ranks --processes 4 -- COMMAND`.

torchrun's agent ends with 1 whatever its workers end with, and a Job by index counts that as a crash of the node. Here
a notice is passed on, the node leaves as one, and the pod's exit code is what its ranks' codes amount to.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Sequence
from queue import SimpleQueue

from holdfast.contract import exit_codes
from holdfast.contract.environment import ENV_LOCAL_RANK, ENV_LOCAL_WORLD_SIZE
from holdfast.contract.errors import InputError
from holdfast.contract.values import between
from holdfast.runtime.shutdown import Shutdown
from holdfast.training.elastic.places import MAX_RANKS

# The ranks leave a margin before the window ends.
KILL_MARGIN_S = 0.5


def run_ranks(command: Sequence[str], processes: int, shutdown: Shutdown, *, window_s: float) -> int:
    """The exit code of the node, once all have ended. One that fails ends the others cleanly.

    Raises InputError where the program cannot be started."""
    between("processes of a node", processes, 1, MAX_RANKS, fix="one for each GPU")
    ranks = _started(command, processes)
    threading.Thread(target=_pass_on, args=(shutdown, ranks, window_s), daemon=True).start()
    ended: SimpleQueue[int] = SimpleQueue()
    for rank in ranks:
        threading.Thread(target=_await, args=(rank, ended), daemon=True).start()
    codes: list[int] = []
    failed = False
    for _ in ranks:
        code = ended.get()
        # Those that a failure takes along end as preempted, which no Job counts.
        if not failed:
            codes.append(code)
        if code != exit_codes.EXIT_COMPLETE and not shutdown.requested:
            failed = True
            shutdown.request(f"a rank ended with {code}")
    return exit_codes.of_ranks(codes, noticed=shutdown.requested and not failed)


def _await(rank: subprocess.Popen[bytes], ended: SimpleQueue[int]) -> None:
    ended.put(rank.wait())


def _started(command: Sequence[str], processes: int) -> list[subprocess.Popen[bytes]]:
    # In groups of their own: a terminal's Ctrl-C would come to them twice, and twice means at once.
    try:
        return [
            subprocess.Popen(
                command,
                env=os.environ | {ENV_LOCAL_RANK: str(rank), ENV_LOCAL_WORLD_SIZE: str(processes)},
                process_group=0,
            )
            for rank in range(processes)
        ]
    except OSError as error:
        raise InputError(
            "the program cannot be started", got=f"{command[0]}: {error.strerror}", allowed="a program of the image",
            fix="python -m holdfast train ranks --processes 4 -- python train.py",
        ) from error  # fmt: skip


def _pass_on(shutdown: Shutdown, ranks: Iterable[subprocess.Popen[bytes]], window_s: float) -> None:
    shutdown.wait()
    for rank in ranks:
        _signal(rank, signal.SIGTERM)
    threading.Event().wait(max(0.0, shutdown.seconds_left(window_s, KILL_MARGIN_S)))
    for rank in ranks:
        _signal(rank, signal.SIGKILL)


def _signal(rank: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(rank.pid, number) if number is signal.SIGKILL else rank.send_signal(number)
