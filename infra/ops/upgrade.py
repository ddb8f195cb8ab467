"""What would a merge of upstream do to a deployed environment?

Both sides are synthesised with the caller's environment file, REF in a worktree of its own, which
is removed again. The real provider then plans both against one state, made from the plan of this
checkout: no project is read. What changes in files, `git diff HEAD...REF` shows.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from holdfast.support.errors import InputError, Unjudged
from holdfast.support.tables import print_json
from holdfast.vocabulary.exit_codes import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FINDINGS
from infra.ops import replay
from infra.ops.synth import ROOT, variables_of

VERSIONS = Path("infra/contract/versions.py")
ENVIRONMENTS = Path("infra/environments")


@dataclass(kw_only=True, slots=True)
class Upgrade:
    """Differences from this checkout to REF."""

    destroyed: list[str] = field(default_factory=list[str])
    replaced: list[str] = field(default_factory=list[str])
    """`stack address: the attributes that force it`."""
    changed: list[str] = field(default_factory=list[str])
    """In place, `stack address: attributes`."""
    created: list[str] = field(default_factory=list[str])
    rules: list[str] = field(default_factory=list[str])
    unloadable: str = ""
    """Why REF cannot read the environment; then nothing else could be compared."""

    @property
    def harmful(self) -> bool:
        return bool(self.destroyed or self.replaced or self.unloadable)


def compare(ref: str, environment: str, root: Path = ROOT) -> Upgrade:
    """Unjudged where REF has another layout, or is older and does not know what the environment
    says.
    """
    with _worktree(ref, root) as other:
        _require_layout(ref, other)
        # Upstream has no file of a fork's environment, and never edits one.
        shutil.copy(root / ENVIRONMENTS / f"{environment}.py", other / ENVIRONMENTS)
        upgrade = Upgrade()
        upgrade.unloadable = _unread(ref, environment, root, other, upgrade.rules)
        if not upgrade.unloadable:
            with tempfile.TemporaryDirectory() as folder:
                for kind, line in replay.effects(environment, root, other, Path(folder)):
                    getattr(upgrade, kind).append(line)
        return upgrade


def _require_layout(ref: str, other: Path) -> None:
    for path in (ENVIRONMENTS / "schema.py", VERSIONS):
        if not (other / path).is_file():
            got = f"no {path} in {ref}"
            allowed = "a revision of this layout"
            raise _incomparable(ref, got, allowed, "name a newer revision")


def _incomparable(ref: str, got: str, allowed: str, fix: str) -> Unjudged:
    """Not a wrong word on the command line: what a merge of REF does is unknown."""
    return Unjudged(
        f"{ref} cannot be compared\n  got:     {got}\n  allowed: {allowed}\n  fix:     {fix}"
    )


def _unread(
    ref: str,
    environment: str,
    root: Path,
    other: Path,
    rules: list[str],
) -> str:
    """Why `other` does not take the environment, empty where it does; `rules` gets those of it that
    are broken.
    """
    judged = subprocess.run(
        [sys.executable, "-m", "infra", "check", environment, "--json"],
        cwd=other,
        env=os.environ | variables_of(other),
        capture_output=True,
        text=True,
        check=False,
    )
    # Python, too, ends with 1 where the code itself is broken, and prints no judgement.
    if judged.returncode in (EXIT_DONE, EXIT_FINDINGS) and judged.stdout:
        rules += sorted({f["rule"] for f in json.loads(judged.stdout)["findings"]})
        return f"rules that would fail: {', '.join(rules)}" if rules else ""
    lines = judged.stderr.strip().splitlines() or [f"exit {judged.returncode}"]
    if judged.returncode == EXIT_BAD_INPUT and not _is_older(ref, root):
        return "\n".join(lines)
    file = f"{ENVIRONMENTS}/{environment}.py"
    raise _incomparable(
        ref,
        f"it does not support {file}: {_reason(lines)}",
        "a revision that supports all fields of this file",
        f"name a newer revision, or take out of {file} what {ref} does not know",
    )


def _reason(lines: list[str]) -> str:
    """One line of what a command printed: of four that name an error what and got, else where it
    ended.
    """
    for at, line in enumerate(lines):
        if line.startswith("error:"):
            return " ".join(part.partition(":")[2].strip() for part in lines[at : at + 2])
        if line.startswith("internal error:"):
            return line
    return lines[-1].strip()


def _is_older(ref: str, root: Path) -> bool:
    """A merge of it would change nothing: the user wants to go back to it."""
    command = ["git", "merge-base", "--is-ancestor", ref, "HEAD"]
    return (
        subprocess.run(
            command,
            cwd=root,
            capture_output=True,
            check=False,
        ).returncode
        == 0
    )


@contextmanager
def _worktree(ref: str, root: Path) -> Generator[Path]:
    if subprocess.run(
        [
            "git",
            "rev-parse",
            "--verify",
            "--quiet",
            f"{ref}^{{commit}}",
        ],
        cwd=root,
        capture_output=True,
    ).returncode:
        raise InputError(
            "revision",
            got=ref,
            allowed="a commit, branch or tag of this repository",
            fix="git fetch first",
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "upstream"
        # Detached: a branch that is checked out elsewhere could not be checked out again.
        _git(root, "worktree", "add", "--detach", "--quiet", str(path), ref)
        try:
            yield path
        finally:
            # Forced, since the copied environment file makes it dirty; one that is left behind
            # stays registered in .git.
            _git(root, "worktree", "remove", "--force", str(path))


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Unjudged(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def show(
    upgrade: Upgrade,
    ref: str,
    environment: str,
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json(
            "upgrade-check",
            ref=ref,
            environment=environment,
            **asdict(upgrade),
        )
        return
    for line in report(upgrade) or [f"{ref} changes nothing for {environment}"]:
        print(line)


def report(upgrade: Upgrade) -> Sequence[str]:
    """What harms first."""
    blocks = [
        ("cannot be read by the other side", [upgrade.unloadable] if upgrade.unloadable else []),
        ("DESTROYED by an apply after the merge", upgrade.destroyed),
        ("REPLACED (destroyed and created again) because of", upgrade.replaced),
        ("created", upgrade.created),
        ("changed in place", upgrade.changed),
    ]
    return [
        line
        for title, items in blocks
        if items
        for line in (title, *(f"  {item}" for item in items))
    ]
