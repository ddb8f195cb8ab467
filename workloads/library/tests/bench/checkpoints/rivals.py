"""Other libraries that the checkpoint benchmark compares with ours.

They live in a separate environment, and each is imported only where it is used. A library that
cannot be installed or imported here is named with the reason.
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

MODULES = {
    "torchsnapshot": "torchsnapshot",
    "orbax": "orbax.checkpoint",
    "torch-checkpointing": "torch_checkpointing",
}
SETS = (frameworks.RIVALS, frameworks.TORCH_CHECKPOINTING)


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
    """Saves JAX arrays. They never change in place, so on a CPU it need not copy them.

    Tensors must be copied, so the comparison favors Orbax.
    """

    name = "orbax"

    def __init__(self, folder: Path, tensors: Tensors) -> None:
        os.environ["JAX_PLATFORMS"] = "cpu"
        import jax
        import orbax.checkpoint as ocp

        super().__init__(folder, tensors)
        self._jax: Any = jax
        jax.distributed.initialize(_coordinator(), dist.get_world_size(), dist.get_rank())
        self._state = {}
        for number, tensor in enumerate(tensors.values()):
            self._state[str(number)] = _make_global_array(jax, tensor)
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


class TorchCheckpointing(Method):
    """Saves from a process of its own and does not wait for the disk: nothing in it calls fsync."""

    name = "torch-checkpointing"

    def __init__(self, folder: Path, tensors: Tensors) -> None:
        super().__init__(folder, tensors)
        self._manager = make_manager(is_async=True)
        self._manager.prewarm_staging({ITEM: tensors})
        self._written: Future[Any] | None = None

    def begin(self, number: int) -> None:
        target = str(self.target(number))
        self._written = self._manager.save(target, {ITEM: self._tensors})
        # It stages in the background; until then the optimizer's step would wait.
        with self._manager.lock():
            pass

    def busy(self) -> bool:
        return self._written is not None and not self._written.done()

    def finish(self) -> None:
        assert self._written is not None
        self._written.result()

    def close(self) -> None:
        self._manager.close()


ITEM = "state"


def make_manager(*, is_async: bool = False, has_index: bool = False) -> Any:
    """Makes a manager; with an index its checkpoints can be restored on other ranks, as those of
    torchtitan. Several ranks need a GPU to write it.
    """
    from torch_checkpointing import CheckpointManager, ItemSpec
    from torch_checkpointing.config import AsyncCheckpointSaverConfig, SyncCheckpointSaverConfig
    from torch_checkpointing.default_resharder import DefaultResharder
    from torch_checkpointing.staging import CheckpointStagerConfig
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    saver: Any = SyncCheckpointSaverConfig()
    if is_async:
        # Its defaults, but pages cannot be pinned without a GPU.
        has_gpu = torch.cuda.is_available()
        staging = CheckpointStagerConfig(use_pinned_memory=has_gpu, use_non_blocking_copy=has_gpu)
        saver = AsyncCheckpointSaverConfig(staging_config=staging)
    config = CheckpointManager.Config(
        items={ITEM: ItemSpec(resharder=DefaultResharder() if has_index else None)},
        save=saver,
        # Direct I/O, its default, fails on ext4: its writes are not aligned.
        storage_config=LocalFileSystemStorageConfig(use_direct_io=False),
    )
    return CheckpointManager(config)


def _coordinator() -> str:
    """Returns an address that rank 0 chose."""
    addresses = [f"127.0.0.1:{free_port()}"]
    dist.broadcast_object_list(addresses)
    return addresses[0]


def _make_global_array(jax: Any, tensor: torch.Tensor) -> Any:
    """Makes one array over all processes, of which each has the bytes of its tensor."""
    devices = jax.devices()
    mesh = jax.sharding.Mesh(devices, ("rank",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rank"))
    piece = jax.device_put(tensor.numpy(), jax.local_devices()[0])
    return jax.make_array_from_single_device_arrays(
        (tensor.numel() * len(devices),), sharding, [piece]
    )


RIVALS: dict[str, type[Any]] = {
    TorchSnapshot.name: TorchSnapshot,
    Orbax.name: Orbax,
    TorchCheckpointing.name: TorchCheckpointing,
}


def environment() -> tuple[dict[str, str], dict[str, str]]:
    """Returns variables that let a process import the rivals, and those absent with a reason."""
    try:
        sites = [str(frameworks.install(name)) for name in SETS]
    except (OSError, subprocess.SubprocessError) as error:
        return {}, {name: f"cannot be installed: {error}" for name in MODULES}
    paths = [*sites, os.environ.get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    absent = {}
    for name, module in MODULES.items():
        reason = _try_import(module, variables)
        if reason:
            absent[name] = reason
    return variables, absent


def _try_import(module: str, variables: dict[str, str]) -> str:
    """Imports a module in a new process; returns the last line of its error, or an empty text."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        f"import torch, {module}",
    ]
    process = subprocess.run(
        command,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode == 0:
        return ""
    lines = process.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit {process.returncode}"
