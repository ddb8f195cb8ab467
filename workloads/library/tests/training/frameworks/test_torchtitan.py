"""torchtitan's contract for checkpoint managers, with its own optimizers and schedulers."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random

import pytest

from holdfast.vocabulary.exit_codes import EXIT_PREEMPTED
from tests.tools import frameworks
from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.locked_packages import install_packages
from workloads.library.tests.training.elastic.sharded_gangs import ShardedGang
from workloads.library.tests.training.frameworks.gang import ROOT, Gang

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]  # many starts

SHARDED_CHILD = "workloads.library.tests.training.frameworks.sharded_titan"
SCRIPT = str(Path(__file__).with_name("titan.py"))
KILL_AT = "HOLDFAST_TEST_KILL_STEP"
ONCE_DURABLE = "HOLDFAST_TEST_KILL_ONCE_DURABLE"
STEPS = 40
KILLS = 20
GATE = 5


@pytest.fixture(scope="module")
def titan_site() -> Path:
    return install_packages(frameworks.TORCHTITAN)


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
        "holdfast.commands",
        "holdfast.training.sharded.launcher",
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


class ShardedTitanGang(ShardedGang):
    """A launcher for each of two nodes, which keeps the shards of torchtitan's ranks in memory."""

    run = "titan"

    def find_copied_step(self) -> int:
        """Returns the newest step of which each shard is on a neighbor too; 0: none."""
        return max((step for step in range(1, GATE + 1) if self.has_copied(step)), default=0)

    def find_lines(self, word: str) -> list[str]:
        """Returns the lines of rank 0 that begin with the word, of all its starts."""
        return [line for line in self.read_log(0).splitlines() if line.startswith(word)]


Make = Callable[[str], TitanGang]


@pytest.fixture
def make(tmp_path: Path, titan_site: Path, server: ForkServer) -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(
            closing(TitanGang(titan_site, tmp_path / name, server))
        )


@pytest.fixture(scope="module")
def whole_digest(
    tmp_path_factory: pytest.TempPathFactory, titan_site: Path, server: ForkServer
) -> str:
    """Returns the digest of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    with closing(TitanGang(titan_site, folder, server)) as gang:
        return gang.complete()


def test_torchtitan_is_exact_after_kills(make: Make, whole_digest: str) -> None:
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
    assert killed.complete() == whole_digest


def test_notice_on_one_rank_stops_torchtitan_with_its_last_step_saved(
    make: Make, whole_digest: str
) -> None:
    noticed = make("noticed")
    assert noticed.notice_on_rank_1("step 8") == [143, 143], noticed.logs()
    digest = noticed.complete()
    assert noticed.find_start() >= 8
    assert digest == whole_digest


def test_foreign_settings_are_refused(server: ForkServer, make: Make) -> None:
    refused = make("refused")
    words = [sys.executable, SCRIPT, "settings"]
    refused.launch(0, words, PYTHONPATH=f"{ROOT}")
    assert refused.ended(0) == 0, refused.logs()
    assert refused.read_log(0).splitlines()[-1] == "all refused"


@pytest.mark.parametrize("has_notice", [False, True], ids=["power loss", "notice"])
def test_sharded_torchtitan_continues_from_copies_in_memory(
    tmp_path: Path,
    server: ForkServer,
    whole_digest: str,
    *,
    has_notice: bool,
) -> None:
    # A window that a busy machine keeps.
    options = {"steps": STEPS, "gate_step": GATE, "window_s": 90.0}
    gang = ShardedTitanGang(tmp_path, server, nodes=2, child=SHARDED_CHILD, **options)
    with closing(gang):
        gang.start(0, 1)
        gang.until(lambda: gang.at_gate() and gang.find_copied_step())
        copied = gang.find_copied_step()
        if has_notice:
            copied = GATE  # the nodes copy the last step before one leaves
            gang.processes[1].send_signal(signal.SIGTERM)
            assert gang.ended(1) == EXIT_PREEMPTED, gang.logs()
        else:
            gang.lose(1)
            assert not gang.shards_in_bucket()
        gang.open_gate()
        gang.start(1)
        assert gang.all_ended() == [0, 0], gang.logs()
        assert gang.find_lines("begins after") == ["begins after 0", f"begins after {copied}"]
        assert f"restored step {copied} of run titan from the memory of nodes" in gang.read_log(0)
        assert gang.find_lines("digest ") == [whole_digest]
