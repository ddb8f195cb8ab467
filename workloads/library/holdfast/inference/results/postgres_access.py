"""Who may reach the embedded PostgreSQL: the account that started it, over a unix socket.

Its superuser can run programs as the server's account, so no other account of the machine may log
in.
"""

import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path

from holdfast.support.errors import InputError, Unjudged

SUPERUSER = "postgres"
# sun_path holds 107 bytes, and the socket is called .s.PGSQL.5432
MAX_SOCKET_DIR = 107 - len("/.s.PGSQL.5432")
_NOBODY = 65534
_RULES = "holdfast_hba.conf"
_ACCOUNTS = "holdfast_ident.conf"
_CAP_DAC_READ_SEARCH = 2


def server_uid() -> int:
    """PostgreSQL refuses to run as root."""
    return _NOBODY if os.geteuid() == 0 else os.geteuid()


def as_server_user(folder: Path) -> list[str]:
    """The command's prefix: the process ends with its parent, never runs as root, and can reach
    `folder`.
    """
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0:
        return [setpriv, "--pdeathsig=INT"] if setpriv else []
    if setpriv is None:
        raise Unjudged(
            "PostgreSQL refuses to run as root and setpriv (util-linux) is missing; use another"
            " user"
        )
    ids = [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    return [
        setpriv,
        *ids,
        *_reach(folder),
        "--pdeathsig=INT",
    ]


def require_reachable(programs: Path) -> None:
    """Raises InputError if the server's account cannot enter the folder of its own programs.

    A capability does not help here: PostgreSQL looks for its programs with access(2), which ignores
    capabilities.
    """
    if os.geteuid() != 0:
        return
    folders = (*reversed(programs.absolute().parents), programs)
    closed = next((each for each in folders if not each.stat().st_mode & stat.S_IXOTH), None)
    if closed is not None:
        raise InputError(
            "PostgreSQL cannot reach its own programs, because it does not run as root",
            got=f"{closed}, which other users cannot enter, above {programs}",
            allowed="as root: an environment in folders that all users can enter",
            fix=(
                f"chmod o+x {closed}, create the environment elsewhere, or run this as another user"
            ),
        )


def _reach(folder: Path) -> list[str]:
    """Options of setpriv: none where all users may enter the folders above, else the capability to
    enter them.
    """
    if all(
        above.stat().st_mode & stat.S_IXOTH for above in folder.absolute().parents if above.exists()
    ):
        return []
    # It reads and enters, but does not write. Containers often lack it; there DAC_OVERRIDE is what
    # is left.
    name = "dac_read_search" if _permitted(_CAP_DAC_READ_SEARCH) else "dac_override"
    return [f"--inh-caps=+{name}", f"--ambient-caps=+{name}"]


def _permitted(capability: int) -> bool:
    lines = Path("/proc/self/status").read_text().splitlines()
    held = next((line.split()[1] for line in lines if line.startswith("CapPrm")), "0")
    return bool(int(held, 16) >> capability & 1)


def give_to_server_user(path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, _NOBODY, _NOBODY)


def socket_folder(data: Path, digest: str) -> Path:
    """The data folder, which is private; where its path is too long for a socket, one of our own
    elsewhere.
    """
    if len(os.fsencode(data)) <= MAX_SOCKET_DIR:
        return data
    # Root's goes where only root can make folders: another process of the user `nobody` could have
    # made one in /tmp.
    if os.geteuid() == 0 and Path("/run").is_dir():
        above = Path("/run")
    else:
        above = Path(tempfile.gettempdir())
    return above / f"holdfast-{os.getuid()}-{digest}"


def make_private(folder: Path) -> None:
    """A folder that only the server's account can enter; InputError when another user made it
    first.
    """
    try:
        folder.mkdir(mode=0o700)
        give_to_server_user(folder)
    except FileExistsError:
        pass
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != server_uid():
        raise InputError(
            "another user owns the socket's folder",
            got=f"{folder}, of user {found.st_uid}",
            allowed=f"a folder of user {server_uid()}",
            fix="remove it, or give a --dir with a shorter path",
        )
    folder.chmod(0o700)


def settings(folder: Path) -> list[str]:
    """Rules of access, written at each start: a database of an earlier version may hold rules that
    trust all users.

    `folder` is ours: in the data folder root would write where the server's account can put links.
    """
    account = pwd.getpwuid(os.geteuid()).pw_name
    rules = "local all all peer map=holdfast\n"
    accounts = f'holdfast "{account}" all\n'
    for name, text in ((_RULES, rules), (_ACCOUNTS, accounts)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)  # read by the server's account
    return [f"hba_file={folder / _RULES}", f"ident_file={folder / _ACCOUNTS}"]
