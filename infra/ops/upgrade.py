"""Finds what a merge of upstream would do to a deployed environment.

REF is merged into HEAD in a temporary worktree. Both sides are synthesized with the caller's
environment file, each with the library that it pins. The real provider then plans both against one
state, which is made from the plan of this checkout: no project is read. `git diff HEAD...REF` shows
the changes of files.
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
from infra.ops.synth import ROOT, library_variables

VERSIONS = Path("infra/contract/versions.py")
ENVIRONMENTS = Path("infra/environments")
# A merge asks for the name of a person even where it makes no commit.
IDENTITY = ("-c", "user.name=preview", "-c", "user.email=preview@holdfast.invalid")


@dataclass(kw_only=True, slots=True)
class Upgrade:
    """Differences from this checkout to REF."""

    destroyed: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    """`stack address: the attributes that force it`."""
    changed: list[str] = field(default_factory=list)
    """Changes in place, `stack address: attributes`."""
    created: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    """Files that the merge leaves to a person. Then REF alone is compared, without the changes of
    this checkout.
    """
    unloadable: str = ""
    """The reason why REF cannot read the environment; then nothing else could be compared."""

    @property
    def harmful(self) -> bool:
        return bool(self.destroyed or self.replaced or self.conflicts or self.unloadable)


def compare(ref: str, environment: str, root: Path = ROOT) -> Upgrade:
    """Compare this checkout with REF. Raises Unjudged if REF has another layout, or is older and
    does not support the environment.
    """
    with _worktree(ref, root) as other:
        _require_layout(ref, other)
        upgrade = Upgrade()
        # A merge of an older REF would change nothing: the user wants to go back to it.
        if not _is_older(ref, root):
            upgrade.conflicts = _merge(ref, root, other)
        # The file may have changes that are not committed, and REF alone does not have it.
        shutil.copy(root / ENVIRONMENTS / f"{environment}.py", other / ENVIRONMENTS)
        upgrade.unloadable = _check_environment(ref, environment, root, other, upgrade.rules)
        if not upgrade.unloadable:
            with tempfile.TemporaryDirectory() as folder:
                for kind, line in replay.effects(environment, root, other, Path(folder)):
                    getattr(upgrade, kind).append(line)
        return upgrade


def _require_layout(ref: str, other: Path) -> None:
    for path in (ENVIRONMENTS / "schema.py", VERSIONS):
        if not (other / path).is_file():
            got = f"no {path} in {ref}"
            raise _incomparable(ref, got, "a revision of this layout", "name a newer revision")


def _merge(ref: str, root: Path, other: Path) -> list[str]:
    """Merge REF into HEAD in the worktree. Returns the files with conflicts; then the worktree has
    REF again.
    """
    head = _git(root, "rev-parse", "HEAD").strip()
    release = _git(root, "rev-parse", f"{ref}^{{commit}}").strip()
    _git(other, "checkout", "--quiet", "--detach", head)
    command = ["git", *IDENTITY, "merge", "--no-commit", "--no-ff", "--quiet", release]
    process = subprocess.run(command, cwd=other, capture_output=True, text=True, check=False)
    if process.returncode == 0:
        return []
    conflicts = _git(other, "diff", "--name-only", "--diff-filter=U").splitlines()
    if not conflicts:
        raise _incomparable(
            ref,
            f"git cannot merge it: {process.stderr.strip()}",
            "a revision with a common ancestor",
            "start from a release of the template, and merge later ones",
        )
    _git(other, "reset", "--quiet", "--hard", release)
    return conflicts


def _incomparable(
    ref: str,
    got: str,
    allowed: str,
    fix: str,
) -> Unjudged:
    """Make the error for a REF whose effects are unknown. It is no InputError: REF exists."""
    return Unjudged(
        f"{ref} cannot be compared\n  got:     {got}\n  allowed: {allowed}\n  fix:     {fix}"
    )


def _check_environment(
    ref: str,
    environment: str,
    root: Path,
    other: Path,
    rules: list[str],
) -> str:
    """Return why the code in `other` does not accept the environment, empty if it does. Adds its
    broken rules to `rules`.
    """
    process = subprocess.run(
        [sys.executable, "-m", "infra", "check", environment, "--json"],
        cwd=other,
        env=os.environ | library_variables(other),
        capture_output=True,
        text=True,
        check=False,
    )
    # Python also exits with 1 if the code itself fails, and then prints no result.
    if process.returncode in (EXIT_DONE, EXIT_FINDINGS) and process.stdout:
        findings = json.loads(process.stdout)["findings"]
        rules += sorted({finding["rule"] for finding in findings})
        return f"rules that would fail: {', '.join(rules)}" if rules else ""
    lines = process.stderr.strip().splitlines() or [f"exit {process.returncode}"]
    if process.returncode == EXIT_BAD_INPUT and not _is_older(ref, root):
        return "\n".join(lines)
    file = f"{ENVIRONMENTS}/{environment}.py"
    raise _incomparable(
        ref,
        f"it does not support {file}: {_find_reason(lines)}",
        "a revision that supports all fields of this file",
        f"name a newer revision, or take out of {file} what {ref} does not know",
    )


def _find_reason(lines: list[str]) -> str:
    """Return the reason in a command's output: error and got of a four-line error, otherwise the
    last line.
    """
    for number, line in enumerate(lines):
        if line.startswith("error:"):
            error = line.partition(":")[2].strip()
            if number + 1 == len(lines):
                return error
            got = lines[number + 1].partition(":")[2].strip()
            return f"{error} {got}".rstrip()
        if line.startswith("internal error:"):
            return line
    return lines[-1].strip()


def _is_older(ref: str, root: Path) -> bool:
    """Tell whether a merge of REF would change nothing, since the user wants to go back to it."""
    command = ["git", "merge-base", "--is-ancestor", ref, "HEAD"]
    process = subprocess.run(command, cwd=root, capture_output=True, check=False)
    return process.returncode == 0


@contextmanager
def _worktree(ref: str, root: Path) -> Generator[Path]:
    command = ["git", "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"]
    process = subprocess.run(command, cwd=root, capture_output=True, check=False)
    if process.returncode != 0:
        raise InputError(
            "revision",
            got=ref,
            allowed="a commit, branch or tag of this repository",
            fix="git fetch first",
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "upstream"
        # Detached, since a branch that is checked out elsewhere cannot be checked out again.
        _git(root, "worktree", "add", "--detach", "--quiet", str(path), ref)
        try:
            yield path
        finally:
            # The copied environment file makes it dirty, so `remove` needs --force. A worktree that
            # is not removed stays registered in .git.
            _git(root, "worktree", "remove", "--force", str(path))


def _git(root: Path, *arguments: str) -> str:
    process = subprocess.run(
        ["git", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        raise Unjudged(f"git {arguments[0]}: {process.stderr.strip()}")
    return process.stdout


def show(
    upgrade: Upgrade,
    ref: str,
    environment: str,
    *,
    as_json: bool,
) -> None:
    """Print the differences, as lines or as one JSON object."""
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
    """Return the lines to print, harmful changes first."""
    blocks = [
        ("conflicts, to resolve by hand; the rest is REF alone", upgrade.conflicts),
        ("cannot be read by the other side", [upgrade.unloadable] if upgrade.unloadable else []),
        ("DESTROYED by an apply after the merge", upgrade.destroyed),
        ("REPLACED (destroyed and created again) because of", upgrade.replaced),
        ("created", upgrade.created),
        ("changed in place", upgrade.changed),
    ]
    lines: list[str] = []
    for title, items in blocks:
        if items:
            lines.append(title)
            lines += [f"  {item}" for item in items]
    return lines
