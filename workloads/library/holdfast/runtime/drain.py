"""The preStop hook `python -m holdfast.runtime.drain`, for entrypoints that cannot be changed.

Requests the stop that SIGTERM would cause from every process of the container that handles
notices, and waits for them. The grace period includes the preStop hook, so the budget is the window
less its margin. The SIGTERM of the kubelet that follows still counts as the first signal: a save in
progress continues.
"""

import contextlib
import os
import sys
import time
from typing import Annotated

import typer

from holdfast.runtime import logs, pidfiles
from holdfast.runtime.shutdown import DRAIN_SIGNAL
from holdfast.support.errors import Unjudged, run_cli
from holdfast.vocabulary.environment import ENV_WINDOW_S
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS
from holdfast.vocabulary.lifecycle import DEFAULT_WINDOW, WINDOW_MARGIN_S

_POLL_S = 0.05


def drain(
    window: Annotated[
        float, typer.Option(help="Grace period of the pool, in seconds.", envvar=ENV_WINDOW_S)
    ] = DEFAULT_WINDOW.pod_s,
) -> None:
    """Stop the trainer or worker of this container cleanly.

    Exit: 0 stopped, 1 still running, 3 none found.
    """
    logs.use_json()
    budget_end = time.monotonic() + window - WINDOW_MARGIN_S
    pids = pidfiles.list_processes()
    # An error, so that the kubelet records FailedPreStopHook: without a process the hook protects
    # nothing.
    if not pids:
        raise Unjudged(f"no process that handles notices is registered in {pidfiles.folder()}")
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, DRAIN_SIGNAL)
    # They are not children of this process, so it has to poll.
    while True:
        running_pids = [pid for pid in pids if pidfiles.is_running(pid)]
        if not running_pids:
            break
        if time.monotonic() > budget_end:
            logs.warning("drain", f"still running at the end of the budget: {running_pids}")
            sys.exit(EXIT_FINDINGS)
        time.sleep(_POLL_S)
    logs.info("drain", f"stopped {len(pids)} processes")
    sys.exit(EXIT_DONE)


if __name__ == "__main__":
    run_cli(lambda: typer.run(drain))
