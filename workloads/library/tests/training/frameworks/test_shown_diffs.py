"""What the page of the library shows for each framework is run as it stands, and killed on both ranks."""

import re
from pathlib import Path

import pytest

from workloads.library.tests.fork_server import ForkServer
from workloads.library.tests.training.frameworks.gang import ROOT, Gang

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
PAGE = ROOT / "workloads/library/CHECKPOINTS.md"
STEPS, HELD = 24, "step waits to be killed"

COMMON = f"""
import hashlib, itertools, pathlib, signal, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
torch.set_num_threads(1)
torch.manual_seed(1)
data = [(x, x.sum().reshape(1)) for x in torch.randn(32, 8)]
body = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))

begun, store = itertools.count(1), pathlib.Path(sys.argv[1])

def loss_of(net, x, y):
    print("step begins", flush=True)
    if next(begun) == 9 and store.with_name("hold").exists():
        while not [*store.rglob("COMMIT.json")]:
            time.sleep(0.01)
        print({HELD!r}, flush=True)
        signal.pause()
    return (net(x) - y).square().mean()
"""
BEFORE = {
    "holdfast.checkpoint": """
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(body)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
total_steps = 24

def train_step(step):
    torch.manual_seed(step)
    x, y = data[(2 * step + dist.get_rank()) % len(data)]
    optimizer.zero_grad()
    loss_of(model, x.reshape(1, -1), y.reshape(1, -1)).backward()
    optimizer.step()
""",
    "frameworks.huggingface": """
from transformers import Trainer, TrainingArguments

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = body
    def forward(self, x, labels):
        return {"loss": loss_of(body, x, labels)}

model = Net()
data = [{"x": x, "labels": y} for x, y in data]
options = dict(output_dir=sys.argv[3], max_steps=24, per_device_train_batch_size=2, report_to=[], use_cpu=True)
options |= dict(disable_tqdm=True, logging_strategy="no")
""",
    "frameworks.lightning": """
from lightning.pytorch import LightningModule, Trainer

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.body = body
    def training_step(self, batch, index):
        return loss_of(body, *batch)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

model, loader = Net(), DataLoader(data, batch_size=2, shuffle=True)
options = dict(accelerator="cpu", devices=2, strategy="ddp", max_steps=24, logger=False)
options |= dict(enable_progress_bar=False, enable_model_summary=False)
""",
    "frameworks.accelerate": """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
adam = torch.optim.AdamW(body.parameters(), lr=1e-2)
model, optimizer, loader = accelerator.prepare(body, adam, DataLoader(data, batch_size=2, shuffle=True))

def train_step(batch):
    optimizer.zero_grad()
    accelerator.backward(loss_of(model, *batch))
    optimizer.step()
""",
}
AFTER = """
bits = [p.detach().numpy().tobytes() for p in body.parameters()]
print("digest", hashlib.sha256(b"".join(bits)).hexdigest(), flush=True)
"""


def shown(framework: str) -> str:
    """What the page's difference ends in, but for the store and a save every second step."""
    blocks: list[str] = re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (difference,) = [block for block in blocks if f"{framework} import" in block]
    program = "".join(line[1:] for line in difference.splitlines(keepends=True) if line.startswith("+"))
    assert program.count('"gs://bucket/runs"') == program.count('run="r"') == 1
    return program.replace('"gs://bucket/runs"', "sys.argv[1]").replace('run="r"', 'run="r", every=2')


@pytest.fixture
def server(framework_server: ForkServer) -> ForkServer:
    return framework_server


@pytest.mark.parametrize("framework", BEFORE)
def test_what_the_page_shows_is_killed_and_ends_with_the_bits_of_one_run(
    tmp_path: Path, site: Path, server: ForkServer, framework: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(COMMON + BEFORE[framework] + shown(framework) + AFTER)

    def gang(name: str) -> Gang:
        return Gang(script, site=site, folder=tmp_path / name, steps=STEPS, server=server)

    (whole,) = [line for line in gang("whole").complete() if line.startswith("digest ")]
    halves, hold = gang("halves"), tmp_path / "halves" / "hold"
    hold.touch()
    halves.killed(HELD)
    hold.unlink()
    resumed = halves.complete()
    assert len([line for line in resumed if line == "step begins"]) < STEPS, "it began anew"
    assert whole in resumed
