"""`python -m holdfast.runtime.drain`: the preStop hook for entrypoints that cannot be changed.

Asks every process of the container that takes notices for the same stop as SIGTERM would, and
waits. A preStop hook eats the same window as the process, so the budget is the window less its
margin. When the kubelet sends SIGTERM afterwards, that is still the first signal: a save in
progress goes on.
"""

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
    """Stop the trainer or worker of this container cleanly. Exit: 0 stopped, 1 still running, 3
    none found.
    """
    budget_ends = time.monotonic() + window - WINDOW_MARGIN_S
    asked = pidfiles.registered()
    # A failure, so that the kubelet records FailedPreStopHook: a hook that finds no process
    # protects none.
    if not asked:
        raise Unjudged(f"no process that handles notices is registered in {pidfiles.folder()}")
    for pid in asked:
        os.kill(pid, DRAIN_SIGNAL)
    # They are not children of this process, so there is no waiting for them but asking.
    while left := [pid for pid in asked if pidfiles.running(pid)]:
        if time.monotonic() > budget_ends:
            logs.warning("drain", f"still running at the end of the budget: {left}")
            sys.exit(EXIT_FINDINGS)
        time.sleep(_POLL_S)
    logs.info("drain", f"stopped {len(asked)} processes")
    sys.exit(EXIT_DONE)


if __name__ == "__main__":
    run_cli(lambda: typer.run(drain))
