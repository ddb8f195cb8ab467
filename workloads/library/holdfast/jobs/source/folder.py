"""Lists the files of a source folder, and refuses what must not leave the machine.

Files are looked at by name and size only, so a folder that is far too large is refused at once.
"""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from holdfast.jobs.source import gitignore
from holdfast.jobs.source.gitignore import Pattern
from holdfast.support.errors import InputError

MAX_FILES = 10_000
MAX_BYTES = 256 << 20
# Never source: the history, which a worktree has as a file with a path, and what Python writes next
# to its modules.
_HISTORY = ".git"
_SKIPPED_FOLDERS = frozenset({"__pycache__"})
_SECRET_NAMES = (
    ".env",
    ".env.*",
    ".envrc",
    ".netrc",
    ".pgpass",
    ".pypirc",
    ".npmrc",
    ".git-credentials",
    ".htpasswd",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.kdbx",
    "*.tfstate",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    "kubeconfig",
    "credentials.json",
    "client_secret*.json",
    "service-account*.json",
    "service_account*.json",
    "application_default_credentials.json",
)
# Templates of secret files hold no secrets.
_TEMPLATE_NAMES = (".env.example", ".env.sample", ".env.template")


@dataclass(frozen=True, slots=True)
class SourceFile:
    name: str
    """Path below the folder, with slashes."""
    path: Path
    is_executable: bool = False
    target: str = ""
    """Path that a symbolic link holds; empty for a file."""


@dataclass(kw_only=True, slots=True)
class _Listing:
    top: Path
    """Root of the repository; without one, the folder itself. Patterns count from here."""
    root: Path
    include: tuple[str, ...]
    files: list[SourceFile] = field(default_factory=list)
    size: int = 0

    def name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def includes(self, name: str) -> bool:
        return any(name == entry or name.startswith(f"{entry}/") for entry in self.include)

    def leads_to_entry(self, folder_name: str) -> bool:
        return any(entry.startswith(f"{folder_name}/") for entry in self.include)


def list_files(folder: Path, include: Sequence[str] = ()) -> list[SourceFile]:
    """Return the files of a folder that git does not ignore, by name, and those of `include`.

    Raises InputError for what must not be packed: too much, a link out of the folder, a secret that
    `include` does not name.
    """
    if not folder.is_dir():
        raise InputError(
            "source: no folder",
            got=folder,
            allowed="the folder with your code",
            fix="name a folder, from the folder of the job file",
        )
    root = folder.resolve()
    for name in include:
        _require_inside(root, name)
    top = _find_repository(root) or root
    entries = tuple(Path(name).as_posix() for name in include)
    listing = _Listing(top=top, root=root, include=entries)
    patterns: list[Pattern] = []
    for place in reversed(root.parents):
        if place.is_relative_to(top):
            patterns += _read_patterns(place, top)
    _list_folder(listing, root, patterns)
    if not listing.files:
        raise InputError(
            "source: nothing to pack",
            got=f"{folder} without a file that git would track",
            allowed="a folder with code",
            fix="name another folder",
        )
    return sorted(listing.files, key=lambda file: file.name)


def _find_repository(folder: Path) -> Path | None:
    """Return the nearest folder above, or this one, that is the root of a git repository."""
    for place in (folder, *folder.parents):
        if (place / _HISTORY).exists():
            return place
    return None


def _require_inside(root: Path, name: str) -> None:
    path = Path(name)
    is_inside = path.parts and not path.is_absolute() and ".." not in path.parts
    if not is_inside or not (root / path).exists():
        raise InputError(
            "source_include",
            got=name,
            allowed=f"a file or folder of {root}",
            fix="name it from the source folder, as .env or data/table.csv",
        )


def _read_patterns(folder: Path, top: Path) -> list[Pattern]:
    file = folder / gitignore.NAME
    if not file.is_file():
        return []
    below = folder.relative_to(top).as_posix()
    prefix = "" if below == "." else f"{below}/"
    # git leaves out a mark of the byte order, as editors on Windows write it.
    return gitignore.parse(file.read_text(encoding="utf-8-sig", errors="replace"), prefix)


def _list_folder(listing: _Listing, folder: Path, patterns: list[Pattern]) -> None:
    """Add the files of a folder and of those below it."""
    patterns = patterns + _read_patterns(folder, listing.top)
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        path = Path(entry.path)
        name = listing.name(path)
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name == _HISTORY or (is_folder and entry.name in _SKIPPED_FOLDERS):
            continue
        path_from_top = path.relative_to(listing.top).as_posix()
        is_ignored = gitignore.is_ignored(patterns, path_from_top, is_folder=is_folder)
        if is_ignored and not listing.includes(name):
            # Only what is named below an ignored folder is packed.
            if is_folder and listing.leads_to_entry(name):
                _list_folder(listing, path, [*patterns, *gitignore.parse("*")])
            continue
        if is_folder:
            _list_folder(listing, path, patterns)
        else:
            _add(listing, entry, path, name)


def _add(
    listing: _Listing,
    entry: "os.DirEntry[str]",
    path: Path,
    name: str,
) -> None:
    _require_spelling(name)
    if entry.is_symlink():
        file = SourceFile(name, path, target=_find_target(listing.root, path, name))
    else:
        status = entry.stat(follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(
                "source: neither a file nor a folder",
                got=name,
                allowed="files, folders and symbolic links",
                fix="remove it, or add it to .gitignore",
            )
        listing.size += status.st_size
        file = SourceFile(name, path, is_executable=bool(status.st_mode & stat.S_IXUSR))
    _require_no_secret(listing, name)
    listing.files.append(file)
    if len(listing.files) > MAX_FILES or listing.size > MAX_BYTES:
        raise InputError(
            f"source: {listing.root} is too large",
            got=f"{len(listing.files):,} files of {listing.size >> 20:,} MiB in all, up to {name}",
            allowed=f"{MAX_FILES:,} files and {MAX_BYTES >> 20} MiB of code",
            fix="add data and results to .gitignore, and put data into a bucket for `data`",
        )


def _require_spelling(name: str) -> None:
    if name.isprintable():
        return
    raise InputError(
        "source: name of a file",
        got=ascii(name),
        allowed="printable names in UTF-8",
        fix="rename it, or add it to .gitignore",
    )


def _find_target(root: Path, path: Path, name: str) -> str:
    """Return where a link leads, from its own folder. Raises InputError outside of `root`."""
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        target = None
    if target is None or not target.is_relative_to(root):
        raise InputError(
            "source: a symbolic link leads out of the folder",
            got=f"{name} -> {path.readlink()}",
            allowed=f"links to existing files below {root}",
            fix="copy the file to the folder, or add the link to .gitignore",
        )
    relative_target = os.path.relpath(target, path.parent.resolve())
    return Path(relative_target).as_posix()


def _require_no_secret(listing: _Listing, name: str) -> None:
    if listing.includes(name) or not looks_secret(name):
        return
    raise make_secret_error(name, "its name is that of a file with secrets")


def looks_secret(name: str) -> bool:
    last = name.rpartition("/")[2].lower()
    if last in _TEMPLATE_NAMES:
        return False
    return any(fnmatchcase(last, pattern) for pattern in _SECRET_NAMES)


def make_secret_error(name: str, reason: str) -> InputError:
    """Return the error about a file with secrets. It never holds a part of the file."""
    return InputError(
        "source: a file that looks like a secret",
        got=f"{name} ({reason})",
        allowed="code; the archive can be read by all who may read the namespace",
        fix=(
            "add it to .gitignore and use `secrets` of the job file; if it is none, name it:"
            f" --set source_include={name}"
        ),
    )
