"""Patterns of .gitignore are read as git itself reads them."""

import itertools
import os
import random
import subprocess
from pathlib import Path

import pytest

from holdfast.jobs.source import folder

PATTERNS = (
    "*.log",
    "!keep.log",
    "/top.txt",
    "build/",
    "docs/*.md",
    "**/cache",
    "a/**/z.py",
    "data/**",
    "!data/small/",
    "*.py[co]",
    "[!a-m]*.bin",
    "file?.txt",
    r"\#literal",
    r"\!literal",
    "trailing   ",
    r"space\ ",
    "# a comment",
    "",
    "deep/er/",
    "*.tmp/",
    "**/",
    "[]]x",
    "q[",
)
NAMES = (
    "a.log",
    "keep.log",
    "top.txt",
    "build",
    "docs/x.md",
    "docs/sub/x.md",
    "cache",
    "a/z.py",
    "a/b/z.py",
    "a/b/c/z.py",
    "data/small/x",
    "data/y",
    "m.pyc",
    "n.bin",
    "a.bin",
    "file1.txt",
    "#literal",
    "!literal",
    "trailing",
    "space ",
    "deep/er/x",
    "x.tmp/y",
    "sub/build/x",
    "sub/top.txt",
    "]x",
    "q[",
)


def list_by_git(root: Path) -> list[str]:
    """Return the files that git would add."""
    command = [
        "git",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-per-directory=.gitignore",
    ]
    # Nothing of the machine's configuration decides.
    env = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    listed = subprocess.run(
        command,
        cwd=root,
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    return sorted(filter(None, listed.stdout.split("\0")))


def fill(root: Path, names: tuple[str, ...]) -> None:
    for name in names:
        path = root / name
        if path.parent.is_file() or path.is_dir():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.mark.parametrize("seed", range(12))
def test_random_patterns_ignore_what_git_ignores(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    fill(tmp_path, NAMES)
    for place in ("", "a", "data", "sub"):
        lines = draw.sample(PATTERNS, draw.randint(0, 8))
        (tmp_path / place / ".gitignore").write_text("\n".join(lines) + "\n")
    files = [file.name for file in folder.list_files(tmp_path)]
    assert sorted(files) == list_by_git(tmp_path)


def test_folders_obey_the_patterns_above_them(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("*.log\n/train/out\n/out2\n")
    names = ("x.py", "x.log", "out/y", "out2/z", "inner/x.log")
    for base, name in itertools.product(("train",), names):
        fill(tmp_path / base, (name,))
    files = [file.name for file in folder.list_files(tmp_path / "train")]
    assert files == list_by_git(tmp_path / "train") == ["out2/z", "x.py"]


def test_a_worktree_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    """The `.git` of a worktree or submodule is a file, which differs on each machine."""
    origin = tmp_path / "origin"
    subprocess.run(["git", "init", "-q", origin], check=True)
    options = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(
        ["git", *options, "commit", "-q", "--allow-empty", "-m", "a"], cwd=origin, check=True
    )
    work = tmp_path / "work"
    subprocess.run(["git", "worktree", "add", "-q", work], cwd=origin, check=True)
    (work / ".gitignore").write_text("\ufeffprivate.txt\n", encoding="utf-8")
    fill(work, ("private.txt", "x.py"))
    assert (work / ".git").is_file()
    files = [file.name for file in folder.list_files(work)]
    assert files == list_by_git(work) == [".gitignore", "x.py"]
