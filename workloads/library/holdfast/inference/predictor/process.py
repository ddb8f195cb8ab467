"""A process that only predicts: `python -m holdfast.inference.predictor.process DESCRIPTOR`.

What kills a process - a segmentation fault in a kernel, the out-of-memory killer,
a library's exit() - kills this one; the worker survives and knows that it was no eviction.
"""

# Why it is so: infra/decisions/0043.

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

from holdfast.inference.errors import PredictorBroken
from holdfast.inference.predictor import frames
from holdfast.inference.predictor.frames import configuration_of
from holdfast.inference.predictor.spec import Predictor, PredictorSpec, build
from holdfast.runtime import gpu
from holdfast.runtime.errors import GpuLost
from holdfast.support.errors import InputError

_PR_SET_PDEATHSIG = 1


def main(descriptor: int, parent: int) -> None:
    _stay_below(parent)
    with socket.socket(fileno=descriptor) as link, contextlib.suppress(EOFError, ConnectionError):
        stream = link.makefile("rb")
        header, _ = frames.receive(stream)
        predictor, reply = _loaded(PredictorSpec(**header))
        link.sendall(frames.encoded(reply))
        while predictor is not None:
            _, bodies = frames.receive(stream)
            link.sendall(_answer(predictor, bodies))


def _stay_below(parent: int) -> None:
    """End with the worker, however it ends; be killed before it; leave the notices to it."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    if os.getppid() != parent:
        os._exit(1)  # it died before the line above could hold


def _loaded(spec: PredictorSpec) -> tuple[Predictor | None, dict[str, object]]:
    try:
        gpu.require()
        predictor = build(spec)
        predictor.load()
        return predictor, {"configuration": configuration_of(predictor.configuration)}
    except InputError as error:
        return None, {
            "input": {
                "what": error.what,
                "got": error.got,
                "allowed": error.allowed,
                "fix": error.fix,
            }
        }
    except (PredictorBroken, GpuLost) as error:
        return None, {"broken": str(error)}
    except Exception as error:  # noqa: BLE001  a model's loader is a user's code and may raise anything
        traceback.print_exc()
        return None, {"bug": type(error).__name__}


def _answer(predictor: Predictor, bodies: list[bytes]) -> bytes:
    began = time.monotonic()
    try:
        values = [{**value} for value in predictor.predict(bodies)]
        return frames.encoded({"values": values, "seconds": time.monotonic() - began})
    except PredictorBroken as error:
        return frames.encoded({"broken": str(error)})
    except Exception as error:  # noqa: BLE001  the same of its predict(), whose values may also be no JSON
        return frames.encoded({"fault": [type(error).__name__, str(error)[:4000]]})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
