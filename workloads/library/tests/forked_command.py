"""A command whose process is forked from a ForkServer, for products that start a program of their
user's many times.

`fork_command(server)` gives what replaces the interpreter. It hands arguments, environment, folder
and output to a thread of the test, which has the program forked, and it ends as the program ends.
A signal to it does not reach the program.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command itself starts in milliseconds
    from workloads.library.tests.fork_server import ForkServer, Started

LIMIT_S = 600.0


@contextmanager
def fork_command(server: "ForkServer") -> Generator[list[str]]:
    """Yields a command that forks from `server`, which no other thread may use meanwhile."""
    # The folder has a short name: the path of a socket has 107 characters at most.
    with (
        tempfile.TemporaryDirectory(prefix="fork-") as folder,
        socket.socket(socket.AF_UNIX) as listening,
    ):
        path = f"{folder}/socket"
        listening.bind(path)
        listening.listen()
        Thread(target=_serve, args=(listening, server), daemon=True).start()
        yield [sys.executable, "-IS", __file__, path]
        with suppress(OSError):  # not all systems shut down what only listens
            listening.shutdown(socket.SHUT_RDWR)


def _serve(listening: socket.socket, server: "ForkServer") -> None:
    with suppress(OSError):  # shut down
        while True:
            connection, _ = listening.accept()
            with connection, connection.makefile("rw") as talk:
                _, files, *_ = socket.recv_fds(connection, 1, 2)
                order = json.loads(talk.readline())
                with os.fdopen(files[0], "wb") as out, os.fdopen(files[1], "wb") as err:
                    command = [sys.executable, *order["argv"]]
                    program = server.start(
                        command,
                        env=order["env"],
                        out=out,
                        err=err,
                        session=False,
                        cwd=order["cwd"],
                    )
                talk.write(f"{wait_for(program)}\n")


def wait_for(program: "Started") -> int:
    """Returns the exit code. A program that hangs is aborted, and writes what each thread does."""
    try:
        return program.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGABRT)
        return program.wait()


def main(path: str, *argv: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [b"."], [1, 2])
        with connection.makefile("rw") as talk:
            talk.write(
                json.dumps(
                    {
                        "argv": argv,
                        "env": dict(os.environ),
                        "cwd": str(Path.cwd()),
                    }
                )
                + "\n"
            )
            talk.flush()
            code = int(talk.readline())
    if code < 0:
        os.kill(os.getpid(), -code)  # Python has a handler of its own for none but SIGINT
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
