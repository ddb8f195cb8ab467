"""What would a merge of upstream do to a deployed environment?

Both sides are synthesised with the caller's environment file, REF in a worktree of its own, which is removed again. The
real provider then plans both against one state, made from the plan of this checkout: no project is asked.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.contract.errors import InputError, Unjudged
from holdfast.contract.exit_codes import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FINDINGS
from infra.ops import replayed
from infra.ops.synth import ROOT, variables_of

VERSIONS = Path("infra/contract/versions.py")
ENVIRONMENTS = Path("infra/environments")
RENDERED = "workloads/rendered"


@dataclass(kw_only=True, slots=True)
class Upgrade:
    """Differences from this checkout to REF."""

    destroyed: list[str] = field(default_factory=list[str])
    replaced: list[str] = field(default_factory=list[str])
    """`stack address: the attributes that force it`."""
    changed: list[str] = field(default_factory=list[str])
    """In place, `stack address: attributes`."""
    created: list[str] = field(default_factory=list[str])
    fields_added: list[str] = field(default_factory=list[str])
    fields_removed: list[str] = field(default_factory=list[str])
    provider: str = ""
    manifests: list[str] = field(default_factory=list[str])
    rules: list[str] = field(default_factory=list[str])
    unloadable: str = ""
    """Why REF cannot read the environment; then nothing else could be compared."""

    @property
    def harmful(self) -> bool:
        return bool(self.destroyed or self.replaced or self.unloadable)


def compare(ref: str, environment: str, root: Path = ROOT) -> Upgrade:
    """Unjudged where REF has another layout, or is older and does not know what the environment says."""
    with _worktree(ref, root) as other:
        _require_layout(ref, other)
        # Upstream has no file of a fork's environment, and never edits one.
        shutil.copy(root / ENVIRONMENTS / f"{environment}.py", other / ENVIRONMENTS)
        upgrade = Upgrade()
        ours, theirs = _fields(root), _fields(other)
        upgrade.fields_added = sorted(theirs - ours)
        upgrade.fields_removed = sorted(ours - theirs)
        upgrade.provider = _pins(root, other)
        upgrade.manifests = _git(root, "diff", "--name-only", "HEAD", ref, "--", RENDERED).splitlines()
        upgrade.unloadable = _unread(ref, environment, root, other, upgrade.rules)
        if not upgrade.unloadable:
            _compare_stacks(upgrade, environment, root, other)
        return upgrade


def _require_layout(ref: str, other: Path) -> None:
    for path in (ENVIRONMENTS / "schema.py", VERSIONS):
        if not (other / path).is_file():
            got, allowed = f"no {path} in {ref}", "a revision of this layout"
            raise _incomparable(ref, got, allowed, "name a newer revision")


def _incomparable(ref: str, got: str, allowed: str, fix: str) -> Unjudged:
    """Not a wrong word on the command line: what a merge of REF does is unknown."""
    return Unjudged(f"{ref} cannot be compared\n  got:     {got}\n  allowed: {allowed}\n  fix:     {fix}")


def _unread(ref: str, environment: str, root: Path, other: Path, rules: list[str]) -> str:
    """Why `other` does not take the environment, empty where it does; `rules` gets those of it that are broken."""
    judged = subprocess.run(
        [sys.executable, "-m", "infra", "check", environment, "--json"],
        cwd=other, env=os.environ | variables_of(other), capture_output=True, text=True, check=False,
    )  # fmt: skip
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
    """One line of what a command printed: of four that name an error what and got, else where it ended."""
    for at, line in enumerate(lines):
        if line.startswith("error:"):
            return " ".join(part.partition(":")[2].strip() for part in lines[at : at + 2])
        if line.startswith("internal error:"):
            return line
    return lines[-1].strip()


def _is_older(ref: str, root: Path) -> bool:
    """A merge of it would change nothing: who names it asks for the way back."""
    command = ["git", "merge-base", "--is-ancestor", ref, "HEAD"]
    return subprocess.run(command, cwd=root, capture_output=True, check=False).returncode == 0


def _compare_stacks(upgrade: Upgrade, environment: str, root: Path, other: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for effect in replayed.effects(environment, root, other, Path(folder)):
            getattr(upgrade, effect.kind).append(effect.line)


def _fields(root: Path) -> set[str]:
    """`Network.pods_cidr`, with its default where it has one; read without running the other side's code."""
    found: set[str] = set()
    for path in (root / ENVIRONMENTS).glob("*.py"):
        # By syntax tree: importing both sides into one process would give the first one twice.
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.decorator_list:  # dataclasses; the rest no fork writes
                found |= {_described(node.name, part) for part in node.body if isinstance(part, ast.AnnAssign)}
    return found


def _described(owner: str, part: ast.AnnAssign) -> str:
    default = f" = {ast.unparse(part.value)}" if part.value else "  (required: add it)"
    return f"{owner}.{ast.unparse(part.target)}: {ast.unparse(part.annotation)}{default}"


def _pins(root: Path, other: Path) -> str:
    """`7.39.0 -> 7.45.0`, or nothing."""
    sides = [_pin(folder / VERSIONS) for folder in (root, other)]
    return "" if sides[0] == sides[1] else f"{sides[0]} -> {sides[1]}"


def _pin(path: Path) -> str:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "GOOGLE_PROVIDER_VERSION":
            return str(ast.literal_eval(node.value))
    raise Unjudged(f"{path} names no provider version")


@contextmanager
def _worktree(ref: str, root: Path) -> Generator[Path]:
    if subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"], cwd=root, capture_output=True
    ).returncode:
        raise InputError(
            "revision", got=ref, allowed="a commit, branch or tag of this repository", fix="git fetch first"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "upstream"
        # Detached: a branch that is checked out elsewhere could not be checked out again.
        _git(root, "worktree", "add", "--detach", "--quiet", str(path), ref)
        try:
            yield path
        finally:
            # Forced, since the copied environment file makes it dirty; one that is left behind stays registered in .git.
            _git(root, "worktree", "remove", "--force", str(path))


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unjudged(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def report(upgrade: Upgrade) -> Sequence[str]:
    """What harms first."""
    blocks = [
        ("cannot be read by the other side", [upgrade.unloadable] if upgrade.unloadable else []),
        ("DESTROYED by an apply after the merge", upgrade.destroyed),
        ("REPLACED (destroyed and created again) because of", upgrade.replaced),
        ("created", upgrade.created),
        ("changed in place", upgrade.changed),
        ("environment fields removed", upgrade.fields_removed),
        ("environment fields added", upgrade.fields_added),
        ("provider", [upgrade.provider] if upgrade.provider else []),
        ("rendered manifests changed", upgrade.manifests),
    ]
    return [line for title, items in blocks if items for line in (title, *(f"  {item}" for item in items))]
