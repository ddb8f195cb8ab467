"""One start of a training of an adapter, which saves to a throttled store until it gets a SIGTERM.

Started by workloads.library.tests.bench.checkpoints.lora_stops with its settings as JSON. Prints
one JSON line for each event.
"""

import json
import sys
import time
from typing import Any

import torch

from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.errors import Preempted
from holdfast.checkpoint.state import capture
from holdfast.checkpoint.state.tensors import view_memory
from holdfast.checkpoint.stores.storage import crc32c
from workloads.library.tests.bench.checkpoints.lora_model import Sizes, make_state, train_step

STEPS_BEFORE_SAVE = 2


def print_event(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, "at": time.monotonic(), **fields}), flush=True)


def digest_adapters(state: dict[str, object]) -> str:
    """Returns a checksum of what is trained."""
    captured = capture(state)
    digests: list[str] = []
    for key in sorted(captured.tensors.keys() - captured.frozen):
        if not key.startswith(("model/", "optimizer/")):
            continue
        tensor = captured.tensors[key].detach().contiguous()
        digests.append(crc32c(view_memory(tensor)))
    return crc32c(memoryview(bytearray("".join(digests).encode())))


def train(settings: dict[str, Any]) -> None:
    sizes = Sizes(layers=settings["layers"], width=settings["width"])
    state = make_state(sizes)
    checkpointer = Checkpointer(
        settings["url"],
        state,
        run=settings["run"],
        every=settings["every"],
        keep=1,
    )
    print_event("built")
    try:
        with checkpointer as ckpt:
            assert ckpt.restored
            print_event(
                "restored",
                step=ckpt.step,
                seconds=ckpt.restored.seconds,
                bytes=ckpt.restored.bytes,
                digest=digest_adapters(state),
            )
            first_step = ckpt.step
            while True:
                train_step(state, ckpt.step)
                ckpt.tick(ckpt.step + 1)
                if ckpt.step == first_step + STEPS_BEFORE_SAVE:
                    if not ckpt.busy:  # a slow start may have made one due
                        ckpt.save(ckpt.step)
                    print_event("saved", step=ckpt.step)
    except Preempted:
        cost = checkpointer._writer.save_cost  # pyright: ignore[reportPrivateUsage]
        print_event(
            "stopped",
            step=checkpointer.step,
            durable_step=checkpointer.durable_step,
            digest=digest_adapters(state),
            blocking_s=cost.blocking_s,
            persist_s=cost.persist_s,
            written_bytes=cost.repeated_bytes,
        )
        raise


if __name__ == "__main__":
    torch.set_num_threads(2)
    train(json.loads(sys.argv[1]))
