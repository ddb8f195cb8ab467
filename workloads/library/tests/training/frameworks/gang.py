"""The ranks of a framework's script as plain processes, each with loader workers in its process
group.
"""

import os
import signal
import sys
from pathlib import Path

from holdfast.vocabulary.environment import ENV_WINDOW_S
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.elastic.gangs import Launched, ranks
from workloads.library.tests.training.frameworks.waits import ENV_WAIT_AT

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


def fork_server(*sites: Path) -> ForkServer:
    """Returns a fork server; `sites` are the folders in which the frameworks are installed."""
    return ForkServer(IMPORTS, path=[ROOT, *sites])


WINDOW_S = 120.0
"""Window in which a last save fits on any machine; another test covers windows that are too short.
"""


class Gang(Launched):
    def __init__(
        self,
        kind: str,
        *,
        site: Path,
        folder: Path,
        steps: int,
        server: ForkServer,
        size: int = 2,
    ) -> None:
        """`kind` is a name of scripts.py, `size` the number of ranks."""
        super().__init__(folder, server, {})
        self._command = [
            sys.executable,
            SCRIPTS,
            kind,
            str(self.checkpoints),
            str(steps),
            str(folder / "out"),
        ]
        self._path = f"{ROOT}{os.pathsep}{site}"
        self._size = size

    def complete(self) -> str:
        """Returns the digest that rank 0 prints in a start that completes."""
        self.start()
        assert self.all_ended() == [0] * self._size, self.logs()
        return self._find_line("digest ")

    def notice_on_rank_1(self, after: str, *, window_s: float = WINDOW_S) -> list[int]:
        """Sends SIGTERM to rank 1's whole process group, like torchrun, once the rank prints
        `after` and waits; returns all exit codes.
        """
        self.start(
            **{
                ENV_WAIT_AT: after,
                ENV_WINDOW_S: str(window_s),
            }
        )
        self.until(lambda: after in self.read_log(1).splitlines())
        os.killpg(self.processes[1].pid, signal.SIGTERM)
        return self.all_ended()

    def first_step(self) -> int:
        """Returns the first step of the newest start, on rank 0."""
        return int(self._find_line("step ").split()[1])

    def start(self, **variables: str) -> None:
        self.remove_logs()
        for rank, rank_variables in enumerate(ranks(self._size)):
            self.launch(rank, self._command, PYTHONPATH=self._path, **rank_variables, **variables)

    def _find_line(self, word: str) -> str:
        return next(line for line in self.read_log(0).splitlines() if line.startswith(word))
