"""Access to the embedded PostgreSQL: only the account that started it, over a unix socket.

The database's superuser can run programs as the server's account, so no other account of the
machine may log in.
"""

import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path

from holdfast.support.errors import InputError, Unjudged

SUPERUSER = "postgres"
# The field sun_path has 107 bytes, and the name of the socket is .s.PGSQL.5432.
MAX_SOCKET_DIR = 107 - len("/.s.PGSQL.5432")
_NOBODY = 65534
_RULES = "holdfast_hba.conf"
_ACCOUNTS = "holdfast_ident.conf"
_CAP_DAC_READ_SEARCH = 2


def server_uid() -> int:
    """Returns the account of the server, as PostgreSQL refuses to run as root."""
    return _NOBODY if os.geteuid() == 0 else os.geteuid()


def as_server_user(folder: Path) -> list[str]:
    """Returns the prefix of a command that runs as the server's account.

    The process ends with its parent and can enter `folder`. Raises Unjudged as root without
    setpriv.
    """
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0:
        return [setpriv, "--pdeathsig=INT"] if setpriv else []
    if setpriv is None:
        raise Unjudged(
            "PostgreSQL refuses to run as root and setpriv (util-linux) is missing; use another"
            " user"
        )
    return [
        setpriv,
        f"--reuid={_NOBODY}",
        f"--regid={_NOBODY}",
        "--clear-groups",
        *_capability_options(folder),
        "--pdeathsig=INT",
    ]


def require_reachable(programs: Path) -> None:
    """Raises InputError if the server's account cannot enter the folder of its own programs.

    A capability does not help here: PostgreSQL looks for its programs with access(2), which ignores
    capabilities.
    """
    if os.geteuid() != 0:
        return
    for folder in (*reversed(programs.absolute().parents), programs):
        if folder.stat().st_mode & stat.S_IXOTH:
            continue
        raise InputError(
            "PostgreSQL cannot reach its own programs, because it does not run as root",
            got=f"{folder}, which other users cannot enter, above {programs}",
            allowed="as root: an environment in folders that all users can enter",
            fix=(
                f"chmod o+x {folder}, create the environment elsewhere, or run this as another user"
            ),
        )


def _capability_options(folder: Path) -> list[str]:
    """Returns setpriv's options to enter `folder`; none if all users may enter its parents."""
    parents = [parent for parent in folder.absolute().parents if parent.exists()]
    if all(parent.stat().st_mode & stat.S_IXOTH for parent in parents):
        return []
    # This one reads and enters, and cannot write. Containers often lack it and have DAC_OVERRIDE.
    name = "dac_read_search" if _permitted(_CAP_DAC_READ_SEARCH) else "dac_override"
    return [f"--inh-caps=+{name}", f"--ambient-caps=+{name}"]


def _permitted(capability: int) -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapPrm"):
            mask = int(line.split()[1], 16)
            return bool(mask >> capability & 1)
    return False


def give_to_server_user(path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, _NOBODY, _NOBODY)


def socket_folder(data: Path, digest: str) -> Path:
    """Returns the data folder, or another private folder if its path is too long for a socket."""
    if len(os.fsencode(data)) <= MAX_SOCKET_DIR:
        return data
    parent = Path(tempfile.gettempdir())
    # As root, use a folder in which only root can create: in /tmp another process of the user
    # `nobody` could have created it first.
    if os.geteuid() == 0 and Path("/run").is_dir():
        parent = Path("/run")
    return parent / f"holdfast-{os.getuid()}-{digest}"


def make_private(folder: Path) -> None:
    """Makes a folder that only the server's account can enter.

    Raises InputError if another user made it first.
    """
    try:
        folder.mkdir(mode=0o700)
        give_to_server_user(folder)
    except FileExistsError:
        pass
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != server_uid():
        raise InputError(
            "another user owns the socket's folder",
            got=f"{folder}, of user {status.st_uid}",
            allowed=f"a folder of user {server_uid()}",
            fix="remove it, or give a --dir with a shorter path",
        )
    folder.chmod(0o700)


def write_settings(folder: Path) -> list[str]:
    """Writes the rules of access to `folder`; returns the server's settings that name them.

    They are written at each start: those of an earlier version may trust all users. `folder` is not
    the data folder, where the server's account could place links for root to follow.
    """
    account = pwd.getpwuid(os.geteuid()).pw_name
    texts = {
        _RULES: "local all all peer map=holdfast\n",
        _ACCOUNTS: f'holdfast "{account}" all\n',
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)  # the server's account reads it
    return [f"hba_file={folder / _RULES}", f"ident_file={folder / _ACCOUNTS}"]
