"""The GPU check of a process that was promised GPUs, and the choice of its device.

NVIDIA's device plugin on GKE mounts the driver's libraries at /usr/local/nvidia and sets no
variable. The common faults are therefore a driver older than torch's CUDA, an image without
LD_LIBRARY_PATH, and a folder that only root may read. Without this check all three compute on the
CPU, at the price of the GPU. Standard library only; torch is not imported.
"""

import ctypes
import errno
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from holdfast.runtime import logs
from holdfast.support.errors import HoldfastError, InputError
from holdfast.vocabulary.environment import ENV_GPUS
from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT, EXIT_COMPLETE, EXIT_RETRY

LIBRARY = "libcuda.so.1"
FOLDER = "/usr/local/nvidia/lib64"
DEVICES = Path("/dev")
_NAME_BYTES = 256
# Codes of cuInit: no device, driver and library of different releases, library too new for the
# device's driver.
_WRONG_IMAGE_OR_POOL = (100, 803, 804)


# Not an InputError, whose exit code would fail the Job for good because of one broken node.
class GpuLost(HoldfastError, RuntimeError):
    """A promised GPU does not answer: a fault of this machine, not of the job.

    The exit code is 75, as another node may work.
    """


def parse_gpu_count(env: Mapping[str, str] | None = None) -> int:
    """Returns the number of GPUs that this pod was promised; 0 without a promise."""
    variables = os.environ if env is None else env
    text = variables.get(ENV_GPUS, "") or "0"
    if not text.isdecimal():
        raise InputError(
            f"{ENV_GPUS} is not a number",
            got=text,
            allowed="0, 1, 2 ...",
            fix="set it to the pod's GPUs",
        )
    return int(text)


def device_type(available: bool, env: Mapping[str, str] | None = None) -> str:
    """Returns `cuda` or `cpu`. Callers pass `torch.cuda.is_available()`.

    Raises InputError if a GPU was promised and none is available.
    """
    count = parse_gpu_count(env)
    if count and not available:
        raise _no_gpu(
            f"{count} promised by {ENV_GPUS}, and torch sees none",
            "run `nvidia-smi` in the pod",
        )
    return "cuda" if available else "cpu"


def check(
    count: int,
    *,
    torch_cuda: str | None,
    devices: Path = DEVICES,
) -> str:
    """Describes the GPUs of a pod that was promised `count`.

    Raises InputError if the image or the pool is wrong, GpuLost if the machine is. Initializes
    CUDA, which no forked child of this process can do again.
    """
    if not any(devices.glob("nvidia[0-9]*")):
        raise _no_gpu(
            "no device /dev/nvidia*",
            "give the container the limit nvidia.com/gpu, on a node with GPUs",
        )
    library = _load_library()
    code = library.cuInit(0)
    if code:
        if code in _WRONG_IMAGE_OR_POOL:
            raise _no_gpu(
                f"cuInit answered {code}",
                "the driver LATEST for the pool, and no libcuda in the image",
            )
        raise GpuLost(f"cuInit answered {code}: a broken or busy GPU")
    cuda = _require_driver(library, torch_cuda)
    device_count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(device_count))
    working = device_count.value
    if working < count:
        raise GpuLost(f"{working} of {count} promised GPUs answer")
    cards = ", ".join(_describe_gpu(library, number) for number in range(working))
    return f"{working} GPU: {cards}; CUDA {cuda}"


def _require_driver(library: ctypes.CDLL, torch_cuda: str | None) -> str:
    """Returns the driver's CUDA version. Raises InputError if it is too old for torch."""
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    major = version.value // 1000
    minor = version.value % 1000 // 10
    cuda = f"{major}.{minor}"
    # An older driver works with a newer runtime of the same major version.
    if torch_cuda and major < int(torch_cuda.partition(".")[0]):
        raise _no_gpu(
            f"a driver for CUDA {cuda}, and torch built with CUDA {torch_cuda}",
            "gpu_driver_version LATEST for the pool, or a torch wheel for the older CUDA",
        )
    return cuda


def start_check(*, devices: Path = DEVICES, torch_cuda: str | None = None) -> BaseProcess | None:
    """Starts the check in a child process, so that it runs while torch is imported.

    Returns None if no GPU was promised; `exit_code` waits for the child. It has to be a child, as a
    process that has initialized CUDA cannot fork ranks that use it.
    """
    count = parse_gpu_count()
    if not count:
        return None
    torch_cuda = torch_cuda or _find_torch_cuda()
    child = get_context("fork").Process(
        target=_run_check,
        args=(count, devices, torch_cuda),
        name="gpu-check",
    )
    child.start()
    return child


def exit_code(child: BaseProcess | None) -> int:
    """Waits for the check: 0 if it passed, 2 for a wrong image or pool, 75 for a broken node."""
    if child is None:
        return EXIT_COMPLETE
    child.join()
    # It ended by a signal: the driver crashed, which is a fault of this machine.
    if child.exitcode is None or child.exitcode < 0:
        return EXIT_RETRY
    return child.exitcode


def require() -> None:
    """Runs the check in this process, which must not fork users of CUDA, and logs its result.

    Raises InputError and GpuLost like `check`.
    """
    count = parse_gpu_count()
    if count:
        logs.info("gpu", check(count, torch_cuda=_find_torch_cuda()))


def _find_torch_cuda() -> str | None:
    """Returns the CUDA version that the installed torch was built with.

    Reads it from torch's version file, as importing torch takes seconds.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0])
    text = (folder / "version.py").read_text()
    match = re.search(r"^cuda\b[^=\n]*= *'([\d.]+)'", text, re.MULTILINE)
    return match[1] if match else None


def _run_check(count: int, devices: Path, torch_cuda: str | None) -> None:
    code = EXIT_COMPLETE
    try:
        logs.info("gpu", check(count, torch_cuda=torch_cuda, devices=devices))
    except InputError as error:
        logs.error("gpu", error.lines())
        code = EXIT_BAD_INPUT
    except GpuLost as error:
        logs.error("gpu", str(error))
        code = EXIT_RETRY
    os._exit(code)  # a forked child must not run its parent's exit handlers


def _load_library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        # The dynamic loader reports a text and no errno.
        if error.errno == errno.EACCES or "ermission denied" in str(error):
            raise _no_gpu(
                f"{FOLDER} may not be read: {error}",
                "open it, or run as a user who may",
            ) from error
        raise _no_gpu(
            f"{LIBRARY} is not found",
            f"LD_LIBRARY_PATH={FOLDER} in the image",
        ) from error


def _describe_gpu(library: ctypes.CDLL, number: int) -> str:
    """Returns the name and memory of a GPU. Raises GpuLost if it does not answer."""
    name = ctypes.create_string_buffer(_NAME_BYTES)
    memory = ctypes.c_size_t()
    handle = ctypes.c_int()
    error_code = (
        library.cuDeviceGet(ctypes.byref(handle), number)
        or library.cuDeviceGetName(name, _NAME_BYTES, handle)
        or library.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    )
    if error_code:
        raise GpuLost(f"GPU {number} answered {error_code}")
    model = name.value.decode(errors="replace")
    return f"{model} ({memory.value / 2**30:.1f} GiB)"


def _no_gpu(got: str, fix: str) -> InputError:
    return InputError(
        "the pod has GPUs configured, but none is usable",
        got=got,
        allowed="a GPU that torch can use",
        fix=fix,
    )


def name_gpu() -> dict[str, str]:
    """Returns the name of the GPU that torch uses here, as the field of an event; empty for none.

    torch is neither imported nor started for it.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return {"accelerator": torch.cuda.get_device_name()}
