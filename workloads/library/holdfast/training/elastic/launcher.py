"""Starts a program once for each GPU of a node, for gangs that are not sharded: `holdfast train
ranks --processes 4 -- COMMAND`.

torchrun's agent exits with 1 whatever its workers exit with, and an Indexed Job counts that as a
crash of the node. This launcher forwards a notice to all ranks, which leave together, and combines
their exit codes. The ranks are forked from a process that has imported torch.

In a gang of a fixed size each rank also gets its number among all ranks and the address of the
first one, as under torchrun.
"""

import threading
from collections.abc import Sequence
from queue import SimpleQueue

from holdfast.runtime.shutdown import Shutdown
from holdfast.support.values import between
from holdfast.training.gang.fixed_group import FixedGroup
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
    group: FixedGroup | None = None,
) -> int:
    """Runs all ranks to their end and returns the exit code of the node.

    A rank that fails stops the others cleanly. Without a group a rank knows its number on the node
    only. Raises InputError if the program cannot be started.
    """
    between("processes of a node", processes, 1, MAX_RANKS, fix="one for each GPU")
    ranks = ForkedRanks(command)
    exit_queue = SimpleQueue[int | None]()
    environments = list[dict[str, str]]()
    for local_rank in range(processes):
        variables = {
            ENV_LOCAL_RANK: str(local_rank),
            ENV_LOCAL_WORLD_SIZE: str(processes),
        }
        if group is not None:
            variables |= group.variables(local_rank, processes)
        environments.append(variables)
    ranks.start(environments, exit_queue)
    threading.Thread(
        target=ranks.forward_notice,
        args=(shutdown, window_s),
        daemon=True,
    ).start()
    codes: list[int] = []
    failed = False
    for _ in range(processes):
        code = exit_queue.get() or 0
        # Ranks that are stopped because of a failure exit as preempted, which no Job counts.
        if not failed:
            codes.append(code)
        if code != exit_codes.EXIT_COMPLETE and not shutdown.requested:
            failed = True
            shutdown.request(f"a rank ended with {code}")
    return exit_codes.combine_exit_codes(codes, noticed=shutdown.requested and not failed)
