"""The predicting process: `python -m holdfast.inference.predictor.process DESCRIPTOR PARENT`.

A segmentation fault in a kernel, the out-of-memory killer or a library's exit() ends this process;
the worker survives and knows that it was no eviction.
"""

# Decision: infra/decisions/0043.

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
from holdfast.inference.predictor import pipe_protocol
from holdfast.inference.predictor.pipe_protocol import check_inputs, normalize_configuration
from holdfast.inference.predictor.spec import Predictor, PredictorSpec, build
from holdfast.runtime import gpu
from holdfast.runtime.gpu import GpuLost
from holdfast.support.errors import InputError

_PR_SET_PDEATHSIG = 1


def main(descriptor: int, parent: int) -> None:
    _follow_parent(parent)
    link = socket.socket(fileno=descriptor)
    with link, contextlib.suppress(EOFError, ConnectionError):
        stream = link.makefile("rb")
        header, _ = pipe_protocol.receive(stream)
        predictor, reply = _load(PredictorSpec(**header))
        link.sendall(pipe_protocol.encode(reply))
        while predictor is not None:
            _, bodies = pipe_protocol.receive(stream)
            link.sendall(_predict(predictor, bodies))


def _follow_parent(parent: int) -> None:
    """Makes this process ignore the worker's signals and end when the worker ends.

    The out-of-memory killer chooses this process before the worker.
    """
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(signum, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before prctl took effect


def _load(spec: PredictorSpec) -> tuple[Predictor | None, dict[str, object]]:
    try:
        gpu.require()
        predictor = build(spec)
        predictor.load()
        reply: dict[str, object] = {
            "configuration": normalize_configuration(predictor.configuration),
            "inputs": check_inputs(getattr(predictor, "inputs", ())),
        }
        return predictor, reply
    except InputError as error:
        fields = {
            "what": error.what,
            "got": error.got,
            "allowed": error.allowed,
            "fix": error.fix,
        }
        return None, {"input": fields}
    except (PredictorBroken, GpuLost) as error:
        return None, {"broken": str(error)}
    except Exception as error:  # noqa: BLE001  a model's loader is a user's code and raises anything
        traceback.print_exc()
        return None, {"bug": type(error).__name__}


def _predict(predictor: Predictor, bodies: list[bytes]) -> bytes:
    """Returns the frame of a reply, with values or an error."""
    start = time.monotonic()
    try:
        values = [dict(value) for value in predictor.predict(bodies)]
        seconds = time.monotonic() - start
        return pipe_protocol.encode({"values": values, "seconds": seconds})
    except PredictorBroken as error:
        return pipe_protocol.encode({"broken": str(error)})
    except Exception as error:  # noqa: BLE001  predict() is a user's code too, and its values may be no JSON
        fault = [type(error).__name__, str(error)[:4000]]
        return pipe_protocol.encode({"fault": fault})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
