"""Keeps the history of the template: one line of commits, one for each release, that a team's
repository starts from and merges (infra/decisions/0141).
"""

import os
import re
import subprocess
from pathlib import Path

from bootstrap import ROOT, refuse
from wheel import read_commit_time

BRANCH = "template"
# A release pushes the branch here, and a clone of the source has it.
PUBLISHED = f"refs/remotes/origin/{BRANCH}"
NAME = "Holdfast template"
EMAIL = "template@holdfast.invalid"


def start(folder: Path, bundle: Path | None) -> None:
    """Make `folder` a repository with the released history, if one exists, as the branch
    `template`.
    """
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    if bundle is not None:
        if not bundle.is_file():
            refuse("HISTORY", bundle, "a file template-X.Y.Z.bundle", "name that of a release")
        git(folder, "fetch", "--quiet", str(bundle.resolve()), f"{BRANCH}:{BRANCH}")
    elif git(ROOT, "for-each-ref", PUBLISHED):
        git(folder, "fetch", "--quiet", str(ROOT), f"{PUBLISHED}:refs/heads/{BRANCH}")


def has_releases(folder: Path) -> bool:
    return bool(git(folder, "for-each-ref", f"refs/heads/{BRANCH}"))


def find_release(folder: Path) -> str:
    """Return the commit of the template that was released from this commit of the source, empty if
    there is none.
    """
    if not has_releases(folder) or is_changed():
        return ""
    pattern = f"--grep=^Source-Commit: {read_source_commit()}$"
    return git(folder, "log", "--format=%H", pattern, BRANCH)


def commit_release(folder: Path, version: str, *, released: bool) -> str:
    """Commit the files of `folder` on top of the last release, and move the branch `template` to
    the commit. The same source and history always give the same commit.
    """
    # The user's own git settings must not leave out or convert files of the template.
    git(folder, "-c", "core.excludesFile=", "-c", "core.autocrlf=false", "add", "--force", "--all")
    parents = ["-p", BRANCH] if has_releases(folder) else []
    subject = f"Holdfast {version}" if released else f"Holdfast {version}, unreleased"
    message = f"{subject}\n\nSource-Commit: {read_source_commit()}"
    commit = git(folder, "commit-tree", git(folder, "write-tree"), *parents, "-m", message)
    git(folder, "update-ref", f"refs/heads/{BRANCH}", commit)
    return commit


def check_out(folder: Path, commit: str) -> None:
    """Start the branch `main` at a commit."""
    git(folder, "reset", "--quiet", "--hard", commit)


def commit_environment(folder: Path, name: str) -> None:
    """Commit on `main` what was added for an environment."""
    git(folder, "add", "--all")
    message = f"Add the environment {name}"
    commit = git(folder, "commit-tree", git(folder, "write-tree"), "-p", "HEAD", "-m", message)
    git(folder, "update-ref", "HEAD", commit)


def write_bundle(folder: Path, file: Path) -> None:
    """Write the history as a file that `git clone` and `git fetch` read."""
    git(folder, "symbolic-ref", "HEAD", f"refs/heads/{BRANCH}")
    git(folder, "bundle", "create", "--quiet", str(file.resolve()), "HEAD", BRANCH)


def list_versions(folder: Path) -> list[str]:
    """Return the released versions, newest first."""
    if not has_releases(folder):
        return []
    return re.findall(r"^Holdfast (\d\S*)$", git(folder, "log", "--format=%s", BRANCH), re.M)


def is_tagged(version: str) -> bool:
    """Tell whether this commit of the source is the release of its version, without changes."""
    return f"v{version}" in git(ROOT, "tag", "--points-at", "HEAD").split() and not is_changed()


def is_changed() -> bool:
    """Tell whether tracked files of the source differ from its last commit."""
    return bool(git(ROOT, "status", "--porcelain", "--untracked-files=no"))


def read_source_commit() -> str:
    return git(ROOT, "rev-parse", "HEAD")


def git(folder: Path, *words: str) -> str:
    """Run git and return its output. Author and time never depend on who runs it."""
    time = f"{read_commit_time()} +0000"
    environment = os.environ | {
        "GIT_AUTHOR_NAME": NAME,
        "GIT_AUTHOR_EMAIL": EMAIL,
        "GIT_AUTHOR_DATE": time,
        "GIT_COMMITTER_NAME": NAME,
        "GIT_COMMITTER_EMAIL": EMAIL,
        "GIT_COMMITTER_DATE": time,
    }
    process = subprocess.run(
        ["git", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        refuse(f"git {words[0]}", process.stderr.strip(), "a command that succeeds", "see above")
    return process.stdout.strip()
