"""Runs a command in a pod of a job, over the API server: a shell on a terminal, or any program."""

import json
import os
import select
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast.clients.api import Api, ApiError, Object
from holdfast.job_commands.control import pod_logs
from holdfast.jobs.diagnose.job_snapshot import JobSnapshot, get_place
from holdfast.support.errors import InputError, Unjudged
from holdfast.vocabulary.exit_codes import EXIT_DONE, EXIT_FINDINGS

SHELL = ("/bin/sh",)
_INPUT_CHANNEL = 0
_RESIZE_CHANNEL = 4
_STATUS_CHANNEL = 3
_INPUT_BYTES = 4096
_POLL_S = 0.1


def choose_pod(job: JobSnapshot, index: int | None) -> Object:
    """Return the running pod with this index, or the first one. Raises InputError if none runs."""
    running = [pod for pod in job.phase("Running") if "deletionTimestamp" not in pod["metadata"]]
    running.sort(key=get_place)
    if index is not None:
        running = [pod for pod in running if get_place(pod) == index]
    if running:
        return running[0]
    places = sorted(get_place(pod) for pod in job.phase("Running"))
    raise InputError(
        "no pod of the job runs" if index is None else f"no pod with index {index} runs",
        got=f"{job.name} with {len(places)} of {job.size} pods running",
        allowed=", ".join(map(str, places[:20])) or "a job with a pod that runs",
        fix=f"holdfast explain {job.name}",
    )


def run(api: Api, pod: Object, command: Sequence[str]) -> int:
    """Run a command in a pod, and return its exit code.

    Standard input, output and error are those of this process. Raises Unjudged without the right.
    """
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    connection = _connect(api, pod, command or SHELL, is_terminal=is_terminal)
    try:
        if is_terminal:
            with _raw_terminal(connection):
                _copy(connection)
        else:
            _copy(connection)
        return read_exit_code(connection.read_channel(_STATUS_CHANNEL))
    finally:
        connection.close()


def _connect(api: Api, pod: Object, command: Sequence[str], *, is_terminal: bool) -> Any:
    from kubernetes import client, stream
    from kubernetes.client.exceptions import ApiException

    meta = pod["metadata"]
    core = client.CoreV1Api(api.client)
    try:
        return stream.stream(
            core.connect_get_namespaced_pod_exec,
            meta["name"],
            meta["namespace"],
            container=pod_logs.find_container(pod),
            command=list(command),
            stdin=True,
            stdout=True,
            stderr=not is_terminal,  # a terminal has one output
            tty=is_terminal,
            _preload_content=False,
            binary=True,
        )
    except ApiException as error:
        raise _explain_refusal(pod, error) from error


def _explain_refusal(pod: Object, error: Any) -> Unjudged:
    meta = pod["metadata"]
    status = int(error.status or 0)
    line = " ".join(str(error.reason).split())
    reason = line[:300]
    if "403" in reason or status in (401, 403):
        return Unjudged(
            f"no right to run commands in pod {meta['name']} of {meta['namespace']}",
            got=reason,
            fix="ask the platform team for `create` on pods/exec in this namespace",
        )
    return ApiError(status, reason)


def _copy(connection: Any) -> None:
    """Copy input and output until the command ends."""
    stdin = sys.stdin.fileno()
    is_open = True
    while connection.is_open():
        sources = [connection.sock.sock]
        if is_open:
            sources.append(stdin)
        ready, _, _ = select.select(sources, [], [], _POLL_S)
        if stdin in ready:
            typed = os.read(stdin, _INPUT_BYTES)
            is_open = bool(typed)
            if typed:
                connection.write_stdin(typed)
            else:
                connection.close_channel(_INPUT_CHANNEL)
        connection.update(timeout=0)
        _print_output(connection)
    _print_output(connection)


def _print_output(connection: Any) -> None:
    if connection.peek_stdout():
        sys.stdout.buffer.write(connection.read_stdout())
        sys.stdout.flush()
    if connection.peek_stderr():
        sys.stderr.buffer.write(connection.read_stderr())
        sys.stderr.flush()


def read_exit_code(text: bytes) -> int:
    """Return the exit code of the command from the status that the kubelet sends last.

    Raises Unjudged if the connection ended before it.
    """
    if not text:
        raise Unjudged("the connection ended before the command", fix="run it again")
    status: Any = json.loads(text)
    if status.get("status") == "Success":
        return EXIT_DONE
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    print(f"error:   {status.get('message', text)}", file=sys.stderr)
    return EXIT_FINDINGS


@contextmanager
def _raw_terminal(connection: Any) -> Generator[None]:
    """Pass each key to the command, and keep its terminal as large as this one."""
    import termios
    import tty

    stdin = sys.stdin.fileno()
    settings = termios.tcgetattr(stdin)

    def resize(*_: object) -> None:
        size = os.get_terminal_size(sys.stdout.fileno())
        message = json.dumps({"Width": size.columns, "Height": size.lines})
        connection.write_channel(_RESIZE_CHANNEL, message.encode())

    former = signal.signal(signal.SIGWINCH, resize)
    try:
        tty.setraw(stdin, termios.TCSADRAIN)  # keys that were typed ahead are kept
        resize()
        yield
    finally:
        signal.signal(signal.SIGWINCH, former)
        termios.tcsetattr(stdin, termios.TCSADRAIN, settings)
