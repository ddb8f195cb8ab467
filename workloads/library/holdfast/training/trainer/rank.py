"""The process of one rank, from its fork to its exit code."""

import os
import sys
from multiprocessing.sharedctypes import RawArray
from typing import Any

from holdfast.checkpoint import CheckpointExit
from holdfast.checkpoint.ranks import is_lost_peer
from holdfast.runtime import deadline, logs
from holdfast.runtime import shutdown as notices
from holdfast.runtime.events import EventLog
from holdfast.runtime.phases import Phases
from holdfast.support.errors import InputError
from holdfast.training.trainer.config import TrainConfig
from holdfast.training.trainer.data import Corpus
from holdfast.training.trainer.loop import destroy_process_group, train
from holdfast.training.trainer.metrics import Meter
from holdfast.vocabulary import exit_codes
from holdfast.vocabulary.telemetry import KIND_TRAINING

Ending = dict[str, Any]
"""`code`, and `digest` if the run is complete."""

# Part of the window that is reserved for releasing communicators.
DESTROY_S = 1.0


class SharedStatus:
    """Memory that the agent shares with its ranks: process ids, steps done, and the notice."""

    def __init__(self, ranks: int) -> None:
        self._pids: Any = RawArray("q", ranks)
        self._steps: Any = RawArray("q", ranks)
        self._noticed: Any = RawArray("q", 1)

    def register(self, local_rank: int) -> bool:
        """Registers this process as a rank and returns whether the notice came before.

        The agent sets the notice and then reads the process ids; a rank does it in the other
        order, so no notice is missed.
        """
        self._pids[local_rank] = os.getpid()
        return bool(self._noticed[0])

    def notice(self) -> list[int]:
        """Sets the notice, for the agent. Returns the processes to forward it to."""
        self._noticed[0] = 1
        return self.pids()

    def pids(self) -> list[int]:
        return [pid for pid in self._pids if pid]

    def done(self, local_rank: int, step: int) -> None:
        self._steps[local_rank] = step

    @property
    def furthest(self) -> int:
        return max(self._steps)


def run_rank(
    config: TrainConfig,
    corpus: Corpus,
    status: SharedStatus,
    phases: Phases,
) -> Ending:
    """Runs one rank. Clean endings are returned instead of exited with: at the first failed exit
    the agent kills the other ranks.
    """
    phases.lap("rendezvous")
    local_rank = int(os.environ["LOCAL_RANK"])
    shutdown = notices.of_process()
    shutdown.announces = False  # the agent does
    shutdown.leave_after(config.window_s)
    if config.deadline is not None:
        deadline.stop_before(
            shutdown, config.deadline, lead_s=max(config.window_s, deadline.DEFAULT_LEAD_S)
        )
    if status.register(local_rank):
        shutdown.request("notice before the start")
    events = EventLog.open(config.events, job=config.run, kind=KIND_TRAINING)
    meter = Meter(
        events,
        every=config.report_every,
        phases=phases,
        on_step=lambda step: status.done(local_rank, step),
    )
    try:
        return {
            "code": exit_codes.EXIT_COMPLETE,
            "digest": train(config, corpus, events, meter),
        }
    except CheckpointExit as end:
        destroy_process_group(DESTROY_S)
        return {"code": end.CODE}
    except InputError as error:
        logs.error("train", error.lines())
        sys.exit(error.code)
    except Exception as error:  # noqa: BLE001  # the rank's top level: every failure becomes an exit code
        logs.error("train", "a rank failed", cause=error)
        sys.exit(failure_code(error, noticed=shutdown.requested))


def failure_code(error: Exception, *, noticed: bool) -> int:
    """Returns the exit code for an error that ended a rank.

    A lost peer is retried, and expected during a shutdown. Every other error is a bug.
    """
    if not is_lost_peer(error):
        return exit_codes.EXIT_BUG
    if noticed:
        return exit_codes.EXIT_PREEMPTED
    return exit_codes.EXIT_RETRY
