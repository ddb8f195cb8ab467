"""One place of a gang, for tests: `python -m workloads.library.tests.training.elastic.child
SETTINGS`, or a fork.

This is the reference trainer, except that it waits at one step until the test opens the gate: what
comes meanwhile comes in time, on any machine. With `ledger`, each member notes what it adds to a
step and what it applied, before and after the sum.
"""

import json
import os
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from holdfast.support.errors import run_cli
from holdfast.training.elastic import trainer
from holdfast.training.elastic.gang import ElasticGang
from holdfast.training.elastic.trainer import ElasticConfig, train_elastic
from holdfast.training.gang import process_group
from holdfast.training.gang.member_addresses import Places, read_places
from holdfast.training.trainer.model import ModelConfig
from holdfast.vocabulary.environment import ENV_GANG_NODES
from workloads.library.tests.training.elastic.faulty_model import Fault, FaultyGPT


def make_gated(
    gate: Path,
    gate_step: int | Sequence[int],
    *,
    pace_s: float,
    slow: Mapping[int, float] = MappingProxyType({}),
    ledger: Path | None,
    faults: Sequence[Fault] = (),
) -> type[ElasticGang]:
    """Makes gangs that wait at each step of `gate_step` until the file `gate` is there, or the one
    of that step.
    """
    gate_steps = [gate_step] if isinstance(gate_step, int) else gate_step

    class Gated(ElasticGang):
        def shards(self) -> Generator[int]:
            if self.step in gate_steps:
                self._wait_at_gate(Path(f"{gate}-{self.step}"))
            # The work of a step, without taking the processor from others.
            time.sleep(slow.get(self.step, pace_s))
            self._mine: list[int] = []
            FaultyGPT.arm(faults, self.step)
            for shard in super().shards():
                self._mine.append(shard)
                yield shard

        def _wait_at_gate(self, gate_of_step: Path) -> None:
            while not (gate.exists() or gate_of_step.exists()):
                Path(f"{gate_of_step}-{self._member.me.index}").touch()
                time.sleep(0.01)

        def reduce(self) -> bool:
            epoch = self._member.epoch.number
            step = self.step
            self._note("adds", epoch, step)
            done = super().reduce()
            if done:
                self._note("applied", epoch, step)
            return done

        def _note(self, event: str, epoch: int, step: int) -> None:
            if ledger is None:
                return
            line = {
                "what": event,
                "epoch": epoch,
                "step": step,
                "shards": self._mine,
                "process": os.getpid(),
            }
            line["t"] = time.monotonic()  # one clock for all processes of a machine
            # One write past all buffers: what is noted stays when the process is killed.
            file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(file, json.dumps(line).encode() + b"\n")
            os.close(file)

    return Gated


def work(settings: dict[str, Any]) -> None:
    """Trains as one place of the gang, and never returns."""
    config = dict(settings)
    process_group.CONNECT_S = config.pop("connect_s")
    process_group.BACKENDS["cuda"] = config.pop("backend", process_group.BACKENDS["cuda"])
    ledger = config.pop("ledger", None)
    faults = [Fault(**fault) for fault in config.pop("faults", ())]
    if faults:
        trainer.ByteGPT = FaultyGPT
    trainer.ElasticGang = make_gated(
        Path(config.pop("gate")),
        config.pop("gate_step"),
        pace_s=config.pop("pace_s", 0.0),
        slow={
            step: seconds
            for place, step, seconds in config.pop("slow", ())
            if place == config["index"]
        },
        ledger=Path(ledger) if ledger else None,
        faults=faults,
    )
    nodes = tuple(map(tuple, config.pop("nodes")))
    index = config.pop("index")
    places = Places(
        nodes=nodes,
        index=index,
        min_nodes=config.pop("min_nodes", 1),
    )
    # As a pod: several processes of one node have the same settings.
    config["places"] = read_places() if ENV_GANG_NODES in os.environ else places
    config |= {
        "events": Path(config["events"]),
        "model": ModelConfig(**config["model"]),
    }

    def main() -> None:
        code = train_elastic(ElasticConfig(**config))
        sys.stdout.flush()
        os._exit(code)

    run_cli(main)


if __name__ == "__main__":
    work(json.loads(sys.argv[1]))
