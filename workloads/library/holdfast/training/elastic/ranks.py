"""Starts a program once for each GPU of a node, for elastic gangs: `holdfast train ranks
--processes 4 -- COMMAND`.

torchrun's agent ends with 1 whatever its workers end with, and a Job by index counts that as a
crash of the node. Here a notice is passed on, the node leaves as one, and the pod's exit code is
what its ranks' codes amount to. The ranks are forked from a process that has imported torch.
"""

import threading
from collections.abc import Sequence
from queue import SimpleQueue

from holdfast.runtime.shutdown import Shutdown
from holdfast.support.values import between
from holdfast.training.gang.forked_ranks import ForkedRanks
from holdfast.training.gang.member_addresses import MAX_RANKS
from holdfast.vocabulary import exit_codes
from holdfast.vocabulary.environment import ENV_LOCAL_RANK, ENV_LOCAL_WORLD_SIZE


def run_ranks(
    command: Sequence[str],
    processes: int,
    shutdown: Shutdown,
    *,
    window_s: float,
) -> int:
    """The exit code of the node, once all have ended. One that fails ends the others cleanly.

    Raises InputError where the program cannot be started."""
    between("processes of a node", processes, 1, MAX_RANKS, fix="one for each GPU")
    ranks = ForkedRanks(command)
    ended = SimpleQueue[int | None]()
    ranks.start(
        [
            {
                ENV_LOCAL_RANK: str(n),
                ENV_LOCAL_WORLD_SIZE: str(processes),
            }
            for n in range(processes)
        ],
        ended,
    )
    threading.Thread(
        target=ranks.pass_on,
        args=(shutdown, window_s),
        daemon=True,
    ).start()
    codes: list[int] = []
    failed = False
    for _ in range(processes):
        code = ended.get() or 0
        # Those that a failure takes along end as preempted, which no Job counts.
        if not failed:
            codes.append(code)
        if code != exit_codes.EXIT_COMPLETE and not shutdown.requested:
            failed = True
            shutdown.request(f"a rank ended with {code}")
    return exit_codes.of_ranks(codes, noticed=shutdown.requested and not failed)
