"""One deliberate fault: a text of the product replaced by another, and the tests that must notice."""

import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[4]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    name: str
    """What the product now does wrong."""
    file: str
    old: str
    """Occurs in the file exactly once."""
    new: str
    tests: tuple[str, ...]
    """Of pytest, each fast; the first that fails ends the run."""

    def mutated(self, text: str) -> str:
        """ValueError where the file no longer has the text: the list must follow the product."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has {text.count(self.old)} times {self.old!r}, 1 is wanted")
        return text.replace(self.old, self.new)

    def apply(self, tree: Path) -> None:
        path = tree / self.file
        text = self.mutated(path.read_text())
        path.unlink()  # the copy is made of hard links: writing in place would change all of them
        path.write_text(text)


def _listed() -> tuple[Mutant, ...]:
    every = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text())["mutant"]
    return tuple(Mutant(**{**each, "tests": tuple(each["tests"])}) for each in every)


MUTANTS = _listed()


def snapshot(into: Path) -> None:
    """What git tracks or would track, as it is now: who edits the tree meanwhile changes no verdict."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, into / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
