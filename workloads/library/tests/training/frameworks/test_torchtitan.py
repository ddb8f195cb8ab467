"""torchtitan's contract for checkpoint managers, with its own optimizers and schedulers."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random

import pytest

from tests import support
from tests.tools import frameworks
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.frameworks.gang import ROOT, Gang

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]  # many starts

SCRIPT = str(Path(__file__).with_name("titan.py"))
KILL_AT = "HOLDFAST_TEST_KILL_STEP"
ONCE_DURABLE = "HOLDFAST_TEST_KILL_ONCE_DURABLE"
STEPS = 40
KILLS = 20


@pytest.fixture(scope="module")
def titan_site() -> Path:
    try:
        return frameworks.install(frameworks.TORCHTITAN)
    except (OSError, subprocess.CalledProcessError) as error:
        support.unavailable(f"torchtitan cannot be installed: {error}")


@pytest.fixture(scope="module")
def server(titan_site: Path) -> Iterator[ForkServer]:
    imports = (
        "torch._dynamo",
        "torch.optim.adamw",
        "torch.distributed.fsdp",
        "torchtitan.components.checkpointer",
        "torchtitan.components.optimizer",
        "holdfast.checkpoint.checkpointer",
        "holdfast.training.frameworks.torchtitan",
    )
    with closing(ForkServer(imports, path=[ROOT, titan_site])) as server:
        yield server


class TitanGang(Gang):
    def __init__(self, site: Path, folder: Path, server: ForkServer) -> None:
        super().__init__(
            "",
            site=site,
            folder=folder,
            steps=STEPS,
            server=server,
        )
        self._command = [sys.executable, SCRIPT, str(self.checkpoints), str(STEPS)]

    def start_and_kill(self, step: int, rank: int, *, once_durable: bool) -> int:
        """Kills a rank in a step, at once or when the last save is committed; returns the step
        after which this start began.
        """
        orders = {f"{KILL_AT}_{rank}": str(step)}
        self.start(**orders | ({ONCE_DURABLE: "1"} if once_durable else {}))
        codes = self.all_ended()
        assert codes[rank] == -signal.SIGKILL and 0 not in codes, self.logs()
        return self.find_start()

    def find_start(self) -> int:
        return int(self._find_line("begins after ").split()[2])


Make = Callable[[str], TitanGang]


@pytest.fixture
def make(tmp_path: Path, titan_site: Path, server: ForkServer) -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(
            closing(TitanGang(titan_site, tmp_path / name, server))
        )


def test_torchtitan_is_exact_after_kills(make: Make) -> None:
    random = Random(0)
    killed = make("killed")
    begins = 0
    for number in range(KILLS):
        latest = 4 + (STEPS - 4) * number // KILLS
        step = max(begins + 1, latest - random.randrange(3))
        # On a busy machine no save might be committed before the next kill.
        once_durable = number % 2 == 1
        first = killed.start_and_kill(step, random.randrange(2), once_durable=once_durable)
        assert first >= begins, "no start goes back behind an earlier one"
        begins = first
    assert begins > STEPS // 2
    assert killed.complete() == make("whole").complete()


def test_notice_on_one_rank_stops_torchtitan_with_its_last_step_saved(make: Make) -> None:
    noticed = make("noticed")
    assert noticed.notice_on_rank_1("step 8") == [143, 143], noticed.logs()
    digest = noticed.complete()
    assert noticed.find_start() >= 8
    assert digest == make("whole").complete()


def test_foreign_settings_are_refused(server: ForkServer, make: Make) -> None:
    refused = make("refused")
    words = [sys.executable, SCRIPT, "settings"]
    refused.launch(0, words, PYTHONPATH=f"{ROOT}")
    assert refused.ended(0) == 0, refused.logs()
    assert refused.read_log(0).splitlines()[-1] == "all refused"
