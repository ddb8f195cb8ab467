"""The ranks of a framework's script as plain processes, each with loader workers in its process group."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.contract.environment import ENV_WINDOW_S
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.processes import until
from workloads.library.tests.training.elastic.gangs import ranks
from workloads.library.tests.training.frameworks.waits import ENV_WAIT_AT
from workloads.library.tests.training.runs import PATIENCE_S, launched

ROOT = Path(__file__).parents[5]
SCRIPTS = str(Path(__file__).with_name("scripts.py"))
IMPORTS = (
    "torch._dynamo",
    "torch.optim.adamw",
    "torch.distributed.fsdp",
    "transformers.trainer",
    "transformers.models.gpt2.modeling_gpt2",
    "lightning.pytorch",
    "accelerate",
    "holdfast.checkpoint.checkpointer",
    "holdfast.training.frameworks.huggingface",
    "holdfast.training.frameworks.lightning",
    "holdfast.training.frameworks.accelerate",
)


def fork_server(site: Path) -> ForkServer:
    """`site`: where the frameworks are installed."""
    return ForkServer(IMPORTS, path=[ROOT, site])


class Gang:
    def __init__(self, kind: str, *, site: Path, folder: Path, steps: int, server: ForkServer, ranks: int = 2) -> None:
        """`kind`: as scripts.py has it."""
        folder.mkdir(exist_ok=True)
        self._server, self._ranks = server, ranks
        self._command = [sys.executable, SCRIPTS, kind, str(folder / "ck"), str(steps), str(folder / "out")]
        self._site, self._folder, self._starts = site, folder, 0

    def complete(self) -> list[str]:
        """What rank 0 printed in a start that came to its end."""
        with self._started({}) as ranks:
            assert [rank.wait(PATIENCE_S) for rank in ranks] == [0] * self._ranks, self._log(0, "err")
        return self._log(0, "out").splitlines()

    def notice_on_rank_1(self, after: str, *, window_s: float = 15) -> list[int]:
        """As torchrun does: SIGTERM to the rank's whole group where it prints `after` and waits; all exit codes."""
        with self._started({ENV_WAIT_AT: after, ENV_WINDOW_S: str(window_s)}) as ranks:
            self._until_printed(after, ranks, 1)
            os.killpg(ranks[1].pid, signal.SIGTERM)
            return [rank.wait(PATIENCE_S) for rank in ranks]

    def first_step(self) -> int:
        """Of the newest start, on rank 0."""
        return int(next(line for line in self._log(0, "out").splitlines() if line.startswith("step ")).split()[1])

    def _until_printed(self, line: str, ranks: list[Any], rank: int) -> None:
        until(
            lambda: line in self._log(rank, "out").splitlines(),
            self.errors,
            alive=lambda: ranks[rank].poll() is None,
            within_s=PATIENCE_S,
        )

    @contextlib.contextmanager
    def _started(self, env: Mapping[str, str]) -> Iterator[list[Any]]:
        self._starts += 1
        common = {"PYTHONPATH": f"{ROOT}{os.pathsep}{self._site}", **env}
        started = [self._start(rank, common | own) for rank, own in enumerate(ranks(self._ranks))]
        try:
            yield started
        finally:
            for rank in started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()

    def _start(self, rank: int, variables: dict[str, str]) -> Any:
        with self._path(rank, "out").open("wb") as out, self._path(rank, "err").open("wb") as err:
            return launched(self._server, self._command, env=os.environ | variables, out=out, err=err, session=True)

    def errors(self) -> str:
        return "\n".join(self._log(rank, "err") for rank in range(self._ranks))

    def _path(self, rank: int, stream: str) -> Path:
        return self._folder / f"start-{self._starts}-rank-{rank}.{stream}"

    def _log(self, rank: int, stream: str) -> str:
        return self._path(rank, stream).read_text()[-20_000:]
