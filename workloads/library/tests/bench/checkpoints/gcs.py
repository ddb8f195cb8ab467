"""One rank of the upload comparison: our writer against DCP's FsspecWriter through gcsfs.

Both write to the same emulator.
"""

import os
import time
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from holdfast.checkpoint import Checkpointer, PerRank
from workloads.library.tests.bench.checkpoints.rank import Given, make_state, run, slowest

ROUNDS = 3


def measure(_: Path, settings: Given) -> dict[str, list[float]]:
    bucket = settings["bucket"]
    tensors = make_state(settings["mib"])
    figures: dict[str, list[float]] = {"holdfast": [], "fsspec": []}
    with Checkpointer(
        f"gs://{bucket}/ours",
        {"t": PerRank(tensors)},
        run="bench",
        every=10**9,
        keep=1,
    ) as ckpt:
        ckpt.tick(1)
        for number in range(2, 2 + ROUNDS):
            for name in figures:
                dist.barrier()
                start = time.perf_counter()
                if name == "holdfast":
                    ckpt.save(number)
                    assert ckpt.wait()
                else:
                    from torch.distributed.checkpoint import FsspecWriter

                    address = os.environ["STORAGE_EMULATOR_HOST"]
                    writer = FsspecWriter(
                        f"gs://{bucket}/dcp/{number}",
                        sync_files=False,
                        endpoint_url=address,
                        token="anon",
                    )
                    dcp.save(tensors, storage_writer=writer)
                figures[name].append(slowest(time.perf_counter() - start))
    return figures


if __name__ == "__main__":
    # Set before the import of gcsfs, which would ask for the kind of bucket by gRPC. The emulator
    # does not speak it.
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    run(measure)
