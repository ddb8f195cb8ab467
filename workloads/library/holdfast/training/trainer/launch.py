"""Starts the ranks of one node under torchrun's agent and reduces their exit codes to one.

This is the first process of the pod. The agent imports torch once and forks the ranks, which saves
each of them the import. It passes the first signal on to every rank, waits inside the window, and
kills what is left when the window closes. A second signal ends it at once.

| exit | meaning | what a Job should do |
|---|---|---|
| 0 | all steps done | complete |
| 143 | stopped cleanly after a notice, or at the window's end | ignore, start again |
| 75 | a peer or the rendezvous was lost | start again |
| 137 and other 128 + n | a rank died by signal n | start again, counted |
| 2, 70 | bad input, a bug | fail |
"""

# Why it is so: infra/decisions/0031.

import contextlib
import gc
import logging
import math
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterable
from typing import Any, cast

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous.api import RendezvousError

from holdfast.runtime import logs
from holdfast.runtime import shutdown as notices
from holdfast.runtime.events import EventLog
from holdfast.runtime.phases import Phases
from holdfast.runtime.shutdown import Shutdown
from holdfast.training.deferred_compiler import defer_compiler
from holdfast.training.trainer.config import TrainConfig
from holdfast.training.trainer.data import Corpus
from holdfast.training.trainer.rank import Ending, SharedStatus, run_rank
from holdfast.training.trainer.rendezvous import rendezvous_handler
from holdfast.vocabulary import exit_codes
from holdfast.vocabulary.telemetry import KIND_TRAINING

# The agent outlives its ranks: they leave WINDOW_MARGIN_S before the window ends.
AGENT_MARGIN_S = 1.0
# A gang is restarted free of charge only if the first failure that the controller sees is that of
# the pod with the notice, so the other pods delay their exit. infra/decisions/0085
UNNOTICED_EXIT_DELAY_S = 5.0
EXIT_BARRIER_S = 3.0
"""Seconds that an agent with a notice, whose own ranks have ended, waits for the agents of other
nodes. Their ranks may still use its store; the agent of a lost node never comes.
"""


class Agent(LocalElasticAgent):
    """Torchrun's agent without its signal handlers and with a bounded exit.

    The original waits for a lost node until the window ends.
    """

    def _start_workers(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, worker_group: WorkerGroup
    ) -> dict[int, Any]:
        workers: Any = super()._start_workers(worker_group)  # pyright: ignore[reportCallIssue]
        # PyTorch before 2.9 knows no TORCHELASTIC_SIGNALS_TO_HANDLE: on SIGTERM it would kill the
        # ranks.
        notices.of_process().take_signals()
        return workers

    def _exit_barrier(self) -> None:
        barrier = threading.Thread(target=super()._exit_barrier, daemon=True)
        barrier.start()
        noticed_at = math.inf
        while barrier.is_alive() and time.monotonic() - noticed_at < EXIT_BARRIER_S:
            barrier.join(0.05)
            if notices.of_process().requested:
                noticed_at = min(noticed_at, time.monotonic())


def launch(config: TrainConfig, phases: Phases) -> int:
    """Runs this node's ranks to their end and returns the exit code of the pod."""
    shutdown = notices.of_process()
    shutdown.takes_s = config.window_s
    corpus = Corpus.read(config.data)
    phases.lap("corpus")
    defer_compiler()
    events = EventLog.open(config.events, job=config.run, kind=KIND_TRAINING)
    status = SharedStatus(config.ranks)
    threading.Thread(
        target=_forward_notice,
        args=(shutdown, status, config.window_s),
        daemon=True,
    ).start()
    endings = _run_agent(config, corpus, status, phases)
    noticed = shutdown.requested
    code = exit_codes.combine_exit_codes([ending["code"] for ending in endings], noticed=noticed)
    result = dict[str, str]()
    for ending in endings:
        if "digest" in ending:
            result["digest"] = ending["digest"]
    events.emit(
        "exit",
        code=code,
        step=status.furthest,
        **result,
    )
    is_retried = code in (exit_codes.EXIT_PREEMPTED, exit_codes.EXIT_RETRY)
    if config.nodes > 1 and is_retried and not noticed:
        shutdown.wait(UNNOTICED_EXIT_DELAY_S)
    return code


def _run_agent(
    config: TrainConfig,
    corpus: Corpus,
    status: SharedStatus,
    phases: Phases,
) -> list[Ending]:
    """Returns the endings of the ranks; an empty list if the rendezvous failed."""
    for name in ("elastic.multiprocessing.api", "elastic.agent.server.api"):
        # Each rank logs its own failure; the agent's traceback would bury that.
        logging.getLogger(f"torch.distributed.{name}").setLevel(logging.CRITICAL)
    # on SIGTERM it would kill the ranks
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGHUP,SIGQUIT"
    with tempfile.TemporaryDirectory(prefix="holdfast-agent-") as scratch:
        try:
            spec = WorkerSpec(
                role="trainer",
                local_world_size=config.ranks,
                entrypoint=run_rank,
                args=(config, corpus, status, phases),
                rdzv_handler=rendezvous_handler(config),
                # The controller restarts: it counts, backs off and moves nodes.
                max_restarts=0,
                monitor_interval=0.05,
            )
            agent = Agent(spec, DefaultLogsSpecs(log_dir=scratch), start_method="fork")
            gc.freeze()  # what exists now stays shared with the forked ranks
            notices.of_process().begin()
            result = cast(RunResult, agent.run())
        except SignalException as death:
            return [{"code": -death.sigval}]
        except (DistError, RendezvousError) as error:
            logs.error("rendezvous", f"the other nodes or ranks were lost: {error}")
            return []
    if result.state is WorkerState.SUCCEEDED:
        return list(result.return_values.values())
    return [{"code": failure.exitcode} for failure in result.failures.values()]


def _forward_notice(
    shutdown: Shutdown,
    status: SharedStatus,
    window_s: float,
) -> None:
    """Forwards the notice to every rank and kills the remaining ranks when the window ends.

    Runs in a thread of the agent.
    """
    shutdown.wait()
    _signal(status.notice(), signal.SIGTERM)
    while (remaining_s := shutdown.seconds_left(window_s, AGENT_MARGIN_S)) > 0:
        time.sleep(min(remaining_s, 0.2))
    _signal(status.pids(), signal.SIGKILL)
    notices.leave_now(exit_codes.EXIT_PREEMPTED)


def _signal(pids: Iterable[int], signum: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
