"""A promised GPU is a GPU: the self-check of a process that was given some, and its choice of a
device.

Source of the order: NVIDIA's device plugin on GKE mounts the driver's libraries at
/usr/local/nvidia and sets no variable, so the three faults met in the field are a driver older than
torch's CUDA, an image without LD_LIBRARY_PATH, and a folder that a user other than root may not
read. All three used to compute on the CPU, at the price of the GPU. Standard library only; torch is
not imported.
"""

import ctypes
import errno
import importlib.util
import os
import re
from collections.abc import Mapping
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from holdfast.runtime import logs
from holdfast.runtime.errors import GpuLost
from holdfast.support.errors import InputError
from holdfast.vocabulary.environment import ENV_GPUS
from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT, EXIT_COMPLETE, EXIT_RETRY

LIBRARY = "libcuda.so.1"
FOLDER = "/usr/local/nvidia/lib64"
DEVICES = Path("/dev")
_NAME_BYTES = 256
# cuInit: no device, driver and library of different releases, library newer than the device's
# driver allows.
_WRONG_IMAGE_OR_POOL = (100, 803, 804)


def promised(env: Mapping[str, str] | None = None) -> int:
    """How many GPUs this pod was given; 0 where none were promised."""
    text = (os.environ if env is None else env).get(ENV_GPUS, "") or "0"
    if not text.isdecimal():
        raise InputError(
            f"{ENV_GPUS} is not a number",
            got=text,
            allowed="0, 1, 2 ...",
            fix="set it to the pod's GPUs",
        )
    return int(text)


def device_type(available: bool, env: Mapping[str, str] | None = None) -> str:
    """`cuda` or `cpu`, for callers that have imported torch:
    `device_type(torch.cuda.is_available())`.

    Never the CPU where a GPU was promised: InputError.
    """
    count = promised(env)
    if count and not available:
        raise _no_gpu(
            f"{count} promised by {ENV_GPUS}, and torch sees none", "run `nvidia-smi` in the pod"
        )
    return "cuda" if available else "cpu"


def check(count: int, *, torch_cuda: str | None, devices: Path = DEVICES) -> str:
    """What answers, in words, where `count` GPUs were promised. Checked in the order in which
    things go wrong.

    InputError: the image or the pool is wrong. GpuLost: the machine is. Initialises CUDA, which no
    forked child of this process can do again.
    """
    if not any(devices.glob("nvidia[0-9]*")):
        raise _no_gpu(
            "no device /dev/nvidia*",
            "give the container the limit nvidia.com/gpu, on a node with GPUs",
        )
    library = _library()
    code = library.cuInit(0)
    if code:
        if code in _WRONG_IMAGE_OR_POOL:
            raise _no_gpu(
                f"cuInit answered {code}",
                "the driver LATEST for the pool, and no libcuda in the image",
            )
        raise GpuLost(f"cuInit answered {code}: a broken or busy GPU")
    version = ctypes.c_int()
    seen = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    cuda = (version.value // 1000, version.value % 1000 // 10)
    # Within a major version an older driver serves a newer runtime.
    if torch_cuda and cuda[0] < int(torch_cuda.partition(".")[0]):
        raise _no_gpu(
            f"a driver for CUDA {cuda[0]}.{cuda[1]}, and torch built with CUDA {torch_cuda}",
            "gpu_driver_version LATEST for the pool, or a torch wheel for the older CUDA",
        )
    library.cuDeviceGetCount(ctypes.byref(seen))
    if seen.value < count:
        raise GpuLost(f"{seen.value} of {count} promised GPUs answer")
    cards = ", ".join(_gpu(library, number) for number in range(seen.value))
    return f"{seen.value} GPU: {cards}; CUDA {cuda[0]}.{cuda[1]}"


def start_check(*, devices: Path = DEVICES, torch_cuda: str | None = None) -> BaseProcess | None:
    """The check of this pod's promise in a child, during the import of torch; None when nothing was
    promised.

    A child, because a process that has initialised CUDA cannot fork ranks that use it. `exit_code`
    waits for it.
    """
    count = promised()
    if not count:
        return None
    child = get_context("fork").Process(
        target=_checked,
        args=(count, devices, torch_cuda or cuda_of_torch()),
        name="gpu-check",
    )
    child.start()
    return child


def exit_code(child: BaseProcess | None) -> int:
    """0: go on. 2: wrong image or pool. 75: another node may do."""
    if child is None:
        return EXIT_COMPLETE
    child.join()
    # Ended by a signal: the driver crashed, which is this machine's fault.
    if child.exitcode is None or child.exitcode < 0:
        return EXIT_RETRY
    return child.exitcode


def require() -> None:
    """The check in this process, for one that forks no users of CUDA: InputError, GpuLost, or a
    line in the log.
    """
    count = promised()
    if count:
        logs.info("gpu", check(count, torch_cuda=cuda_of_torch()))


def cuda_of_torch() -> str | None:
    """The CUDA that the installed torch was built with, read from its file: importing it takes
    seconds.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    text = (Path(spec.submodule_search_locations[0]) / "version.py").read_text()
    match = re.search(r"^cuda\b[^=\n]*= *'([\d.]+)'", text, re.MULTILINE)
    return match[1] if match else None


def _checked(count: int, devices: Path, torch_cuda: str | None) -> None:
    code = EXIT_COMPLETE
    try:
        logs.info("gpu", check(count, torch_cuda=torch_cuda, devices=devices))
    except InputError as refused:
        logs.error("gpu", refused.lines())
        code = EXIT_BAD_INPUT
    except GpuLost as lost:
        logs.error("gpu", str(lost))
        code = EXIT_RETRY
    os._exit(code)  # a child of a fork must not run what its parent meant to run at its own end


def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        # The dynamic loader hands on its text, and no errno.
        if error.errno == errno.EACCES or "ermission denied" in str(error):
            raise _no_gpu(
                f"{FOLDER} may not be read: {error}", "open it, or run as a user who may"
            ) from error
        raise _no_gpu(
            f"{LIBRARY} is not found", f"LD_LIBRARY_PATH={FOLDER} in the image"
        ) from error


def _gpu(library: ctypes.CDLL, number: int) -> str:
    """Its name and memory."""
    name = ctypes.create_string_buffer(_NAME_BYTES)
    memory = ctypes.c_size_t()
    handle = ctypes.c_int()
    failed = (
        library.cuDeviceGet(ctypes.byref(handle), number)
        or library.cuDeviceGetName(name, _NAME_BYTES, handle)
        or library.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    )
    if failed:
        raise GpuLost(f"GPU {number} answered {failed}")
    return f"{name.value.decode(errors='replace')} ({memory.value / 2**30:.1f} GiB)"


def _no_gpu(got: str, fix: str) -> InputError:
    return InputError(
        "the pod has GPUs configured, but none is usable",
        got=got,
        allowed="a GPU that torch can use",
        fix=fix,
    )
