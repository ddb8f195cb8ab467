"""A replica group of torchft with one rank; runs in an environment with torchft.

python elastic_torchft_member.py LIGHTHOUSE LOG SECONDS
"""

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import TCPStore
from torchft import Manager
from torchft.process_group import ProcessGroupGloo

lighthouse = sys.argv[1]
log = Path(sys.argv[2])
limit = timedelta(seconds=float(sys.argv[3]))
store = TCPStore(
    "127.0.0.1",
    0,
    is_master=True,
    wait_for_workers=False,
)
state = {"weight": torch.zeros(1)}
manager = Manager(
    pg=ProcessGroupGloo(timeout=limit),
    load_state_dict=state.update,
    state_dict=lambda: state,
    min_replica_size=1,
    timeout=limit,
    rank=0,
    world_size=1,
    store_addr="127.0.0.1",
    store_port=store.port,
    lighthouse_addr=lighthouse,
    hostname="127.0.0.1",
)
while True:
    manager.start_quorum()
    manager.allreduce(torch.ones(1)).wait()
    applied = manager.should_commit()
    now = time.monotonic()
    if applied:
        with log.open("a") as file:
            print(
                now,
                manager.num_participants(),
                file=file,
                flush=True,
            )
    time.sleep(0.02)
