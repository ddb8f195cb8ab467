"""Starts the ranks of one node under torchrun's agent and turns their ends into one exit code.

Called by `python -m workloads train run`, the first process of the pod. The agent imports torch once and
forks the ranks, which saves each of them the import. It passes the first signal on to every rank, waits
inside the window, and kills what is left when the window closes. A second signal ends it at once.

| exit | meaning | what a Job should do |
|---|---|---|
| 0 | all steps done | complete |
| 143 | stopped in order after a notice, or at the window's end | ignore, start again |
| 75 | a peer or the rendezvous was lost | start again |
| 137 and other 128 + n | a rank died by signal n | start again, counted |
| 2, 70 | bad input, a bug | fail |
"""

import contextlib
import gc
import importlib
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from typing import cast

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from infra.contract import lifecycle
from infra.contract.errors import InputError
from infra.contract.telemetry import KIND_TRAINING
from workloads.runtime import shutdown as notices
from workloads.runtime.events import EventLog
from workloads.runtime.phases import Phases
from workloads.runtime.shutdown import Shutdown
from workloads.training.config import TrainConfig
from workloads.training.data import Corpus
from workloads.training.rank import Board, Ending, run_rank

# The agent outlives its ranks: they leave WINDOW_MARGIN_S before the window ends.
AGENT_MARGIN_S = 1.0
PEERS_S = 600.0  # as long as torch waits for the rest of a gang that has begun to meet
_NAME = re.compile(r"(?=.*[a-z])[^.]+\.", re.IGNORECASE)  # of a pod and its service, no address


def launch(config: TrainConfig, phases: Phases) -> int:
    """Run this node's ranks to their end; the exit code of the pod."""
    shutdown = notices.of_process()
    corpus = Corpus.read(config.data)
    phases.lap("corpus")
    importlib.import_module("torch._dynamo")  # DDP imports it: once here, before the fork
    phases.lap("compiler import")
    events = EventLog.open(config.events, job=config.run, kind=KIND_TRAINING)
    board = Board(config.ranks)
    threading.Thread(target=_pass_on, args=(shutdown, board, config.window_s), daemon=True).start()
    endings = _run_agent(config, corpus, board, phases)
    code = exit_code([ending["code"] for ending in endings], noticed=shutdown.requested)
    digests = {ending["digest"] for ending in endings if "digest" in ending}
    events.emit("exit", code=code, step=board.furthest, **({"digest": digests.pop()} if digests else {}))
    return code


def exit_code(codes: Iterable[int], *, noticed: bool) -> int:
    """The pod's code from those of its ranks: what must not be retried outweighs all else."""
    found = {128 - code if code < 0 else code for code in codes}
    for fatal in lifecycle.FATAL_EXIT_CODES:
        if fatal in found:
            return fatal
    if found == {lifecycle.EXIT_COMPLETE}:
        return lifecycle.EXIT_COMPLETE
    if noticed or lifecycle.EXIT_PREEMPTED in found:
        return lifecycle.EXIT_PREEMPTED
    if lifecycle.EXIT_RENDEZVOUS_LOST in found or not found:
        return lifecycle.EXIT_RENDEZVOUS_LOST
    return max(found)


def _run_agent(config: TrainConfig, corpus: Corpus, board: Board, phases: Phases) -> list[Ending]:
    """How the ranks ended; empty when they never met."""
    for name in ("elastic.multiprocessing.api", "elastic.agent.server.api"):
        # A rank says itself why it failed; the agent's traceback of its own would bury that.
        logging.getLogger(f"torch.distributed.{name}").setLevel(logging.CRITICAL)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGHUP,SIGQUIT"  # its way with SIGTERM is to kill the ranks
    gc.freeze()  # what exists now stays shared with the forked ranks
    with tempfile.TemporaryDirectory(prefix="holdfast-agent-") as logs:
        try:
            spec = _spec(config, corpus, board, phases)
            agent = LocalElasticAgent(spec, DefaultLogsSpecs(log_dir=logs), start_method="fork")
            result = cast(RunResult, agent.run())
        except SignalException as death:
            return [{"code": -death.sigval}]
        except (DistError, RendezvousError) as error:
            print(f"rendezvous lost: {error}", file=sys.stderr)
            return []
    if result.state is WorkerState.SUCCEEDED:
        return list(result.return_values.values())
    return [{"code": failure.exitcode} for failure in result.failures.values()]


def _pass_on(shutdown: Shutdown, board: Board, window_s: float) -> None:
    """Thread of the agent: the notice goes to every rank; at the window's end none may be left."""
    shutdown.wait()
    _signal(board.notice(), signal.SIGTERM)
    while (left := shutdown.seconds_left(window_s, AGENT_MARGIN_S)) > 0:
        time.sleep(min(left, 0.2))
    _signal(board.pids(), signal.SIGKILL)
    notices.leave_now(lifecycle.EXIT_PREEMPTED)


def _signal(pids: Iterable[int], signum: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def _spec(config: TrainConfig, corpus: Corpus, board: Board, phases: Phases) -> WorkerSpec:
    alone = config.nodes == 1
    if alone:
        use_loopback()
    return WorkerSpec(
        role="trainer",
        local_world_size=config.ranks,
        entrypoint=run_rank,
        args=(config, corpus, board, phases),
        rdzv_handler=_meet(config),
        max_restarts=0,  # restarting is the controller's work: it counts, backs off and moves nodes
        monitor_interval=0.05,
        master_addr="127.0.0.1" if alone else None,
    )


def _meet(config: TrainConfig) -> RendezvousHandler:
    """Pods of a gang start minutes apart, so a peer asks again for as long as the first pod may take."""
    endpoint = config.rendezvous or "localhost:0"  # port 0: the kernel picks a free one
    first = is_named(endpoint, socket.gethostname())
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=endpoint,
        run_id=config.run,
        min_nodes=config.nodes,
        max_nodes=config.nodes,
        local_addr="127.0.0.1" if config.nodes == 1 else None,
        is_host=first or None,  # None: torch compares addresses
    )
    deadline = time.monotonic() + PEERS_S
    while True:
        try:
            return get_rendezvous_handler(parameters)
        except RendezvousError as error:
            if first or not _NAME.match(endpoint):
                raise InputError(
                    "the ranks have no place to meet",
                    got=f"{endpoint}: {error.__cause__ or error}",
                    allowed="an address of this job's first node with a free port",
                    fix="another port in --rendezvous, or leave it out on one node",
                ) from error
            if time.monotonic() > deadline:
                raise


def is_named(endpoint: str, hostname: str) -> bool:
    """Whether the meeting place bears the name of this pod. torch would ask the DNS, once; the record of a
    new pod may come later than its process, and then nobody would open the place."""
    return bool(_NAME.match(endpoint)) and endpoint.partition(".")[0] == hostname.partition(".")[0]


def use_loopback() -> None:
    """gloo would look the host's name up, which fails on machines without a network."""
    for _, name in socket.if_nameindex():
        if name in ("lo", "lo0"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
