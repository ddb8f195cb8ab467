"""Libraries of others that the checkpoint benchmark measures ours beside, from an environment of
their own.

Each is imported only where it is used: what cannot be installed or imported here is named with the
reason.
"""

import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from holdfast.drill.serving.fleet import free_port
from tests.tools import frameworks
from workloads.library.tests.bench.checkpoints.methods import Method, Tensors

MODULES = {"torchsnapshot": "torchsnapshot", "orbax": "orbax.checkpoint"}


class TorchSnapshot(Method):
    name = "torchsnapshot"

    def __init__(self, folder: Path, tensors: Tensors) -> None:
        from torchsnapshot import Snapshot, StateDict

        super().__init__(folder, tensors)
        self._take: Any = Snapshot.async_take
        self._state: Any = {"t": StateDict(**tensors)}
        self._pending: Any = None

    def begin(self, number: int) -> None:
        self._pending = self._take(path=str(self.target(number)), app_state=self._state)

    def busy(self) -> bool:
        return not self._pending.done()

    def finish(self) -> None:
        self._pending.wait()


class Orbax(Method):
    """Of JAX arrays that exist: these never change in place, so a save on a CPU need not copy them,
    as it must copy tensors. That is in its favour.
    """

    name = "orbax"

    def __init__(self, folder: Path, tensors: Tensors) -> None:
        os.environ["JAX_PLATFORMS"] = "cpu"
        import jax
        import orbax.checkpoint as ocp

        super().__init__(folder, tensors)
        self._jax: Any = jax
        jax.distributed.initialize(_coordinator(), dist.get_world_size(), dist.get_rank())
        self._state = {
            str(i): _of_all_ranks(jax, tensor) for i, tensor in enumerate(tensors.values())
        }
        self._arguments: Any = ocp.args.PyTreeSave
        self._saver: Any = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
        self._waiter = ThreadPoolExecutor(1)
        self._durable: Future[None] | None = None

    def begin(self, number: int) -> None:
        target = self.target(number)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._saver.save(target, args=self._arguments(self._state))
        self._durable = self._waiter.submit(self._saver.wait_until_finished)

    def busy(self) -> bool:
        return self._durable is not None and not self._durable.done()

    def finish(self) -> None:
        assert self._durable is not None
        self._durable.result()

    def close(self) -> None:
        self._saver.close()
        self._waiter.shutdown()
        self._jax.distributed.shutdown()


def _coordinator() -> str:
    """An address that rank 0 chose."""
    chosen = [f"127.0.0.1:{free_port()}"]
    dist.broadcast_object_list(chosen)
    return chosen[0]


def _of_all_ranks(jax: Any, tensor: torch.Tensor) -> Any:
    """One array over all processes, each of which holds its tensor's bytes."""
    devices = jax.devices()
    mesh = jax.sharding.Mesh(devices, ("rank",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rank"))
    piece = jax.device_put(tensor.numpy(), jax.local_devices()[0])
    return jax.make_array_from_single_device_arrays(
        (tensor.numel() * len(devices),), sharding, [piece]
    )


RIVALS: dict[str, type[Any]] = {m.name: m for m in (TorchSnapshot, Orbax)}


def environment() -> tuple[dict[str, str], dict[str, str]]:
    """The variables that let a process import them, and why a rival does not run."""
    try:
        site = frameworks.install(frameworks.RIVALS)
    except (OSError, subprocess.SubprocessError) as error:
        return {}, {name: f"cannot be installed: {error}" for name in MODULES}
    variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    }
    tried = {name: _tried(module, variables) for name, module in MODULES.items()}
    return variables, {name: reason for name, reason in tried.items() if reason}


def _tried(module: str, variables: dict[str, str]) -> str:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        f"import torch, {module}",
    ]
    done = subprocess.run(
        command,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
