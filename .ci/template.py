"""`make template OUT=DIR [ENV=NAME] [HISTORY=FILE]` makes the repository that a team keeps, with
the library as a pinned wheel. Its history starts with the releases of the template.
"""

import argparse
import fnmatch
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import history
from bootstrap import ROOT, refuse
from wheel import read_library_version

# A team keeps neither the library with its tests, figures and pages, nor the tools that release
# this repository.
LEFT_OUT = (
    "workloads/library/*",
    ".ci/history.py",
    ".ci/lock.py",
    ".ci/publish.py",
    ".ci/release.py",
    ".ci/sbom.py",
    ".ci/site*",
    ".ci/template*",
    ".ci/wheel.py",
    ".github/CHANGELOG.md",
    ".github/CONTRIBUTING.md",
    ".github/demo.png",
    ".github/pictures/*",
    ".github/workflows/locks.yml",
    ".github/workflows/pages.yml",
    ".github/workflows/publish.yml",
    ".github/workflows/release.yml",
    ".github/workflows/tiers.yml",
    ".pre-commit-hooks.yaml",
    "AGENTS.md",
    "README.md",
    "infra/environments/dev.py",
    "workloads/rendered/dev/*",
    "tests/snapshots/plan/dev/*",
    "infra/decisions/*",  # except those that a kept file cites
    "requirements/checkpoint-rivals.txt",
    "requirements/docs.*",
    "requirements/frameworks.txt",
    "requirements/litserve.*",
    "requirements/oldest.*",
    "requirements/torch-checkpointing.txt",
    "requirements/torch-middle.*",
    "requirements/torch-oldest*",
    "requirements/torchao.txt",
    "requirements/torchft.*",
    "requirements/torchtitan.txt",
    "requirements/trackers.txt",
    "requirements/vllm-router.*",
    "requirements/vllm.*",
    "tests/NOT_PROVEN.md",
    "tests/SLOWEST.md",
    "tests/decision_index.py",
    "tests/test_decisions.py",
    "tests/test_figures.py",
    "tests/test_options.py",
    "tests/test_pages.py",
    "tests/test_reach.py",
    "tests/test_readme.py",
    "tests/test_release.py",
    "tests/test_stderr.py",
    "tests/test_tiers.py",
    "tests/check_style.py",
    "tests/check_words.py",
    "tests/style.toml",
    "tests/test_style.py",
    "tests/test_template.py",
    "tests/test_words.py",
    "tests/test_commands.py",
    "tests/plan/test_fork.py",
    "tests/plan/test_template_history.py",
    "tests/plan/test_upgrade.py",
    "tests/plan/test_first_week.py",
    # Tests of code that no edit of an environment affects.
    "tests/infra/ops/test_engine.py",
    "tests/infra/ops/test_project.py",
    "tests/infra/ops/test_provider_lock.py",
    "tests/plan/test_stand_in.py",
    # The next provider and CDK Terrain come with an update, once the blueprint has moved to them.
    "tests/plan/test_provider_8.py",
    "tests/plan/test_cdktn*.py",
    "tests/tools/terraform-provider-google-8/*",
    # Tests of the environments dev and prod, which a team does not keep.
    "tests/infra/ops/test_prove*",
    "tests/plan/test_replay.py",
    "tests/tools/gcsemulator/*",
    "tests/tools/k6/*",
    "tests/tools/frameworks.py",
)
CITATION = re.compile(r"\bdecisions?[/ ](\d{4})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--env", default="", help="an environment of your own, in addition to the example"
    )
    parser.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help="the bundle of a release; default: the branch origin/template, if it exists",
    )
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    if out.exists():
        refuse("OUT", out, "a folder that does not exist", "name another, or remove it")
    version = read_library_version()
    scratch = out.with_name(f".{out.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        history.start(scratch, arguments.history)
        released = bool(history.find_release(scratch)) or history.is_tagged(version)
        history.check_out(scratch, commit_template(scratch, version, released=released))
        if arguments.env and arguments.env != "example":
            add_environment(scratch, arguments.env)
            history.commit_environment(scratch, arguments.env)
        scratch.rename(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(out)
    if not released:
        print(
            f"Note: made from a commit that is not the release v{version}. To merge later releases"
            " without conflicts, start from a release: git checkout its tag first",
            file=sys.stderr,
        )
    print(f"Next: cd {out} && make demo", file=sys.stderr)


def commit_template(folder: Path, version: str, *, released: bool) -> str:
    """Return the commit of the template that belongs to this source; makes it unless the history
    has it.
    """
    commit = history.find_release(folder)
    if commit:
        return commit
    write_files(folder)
    return history.commit_release(folder, version, released=released)


def write_files(folder: Path) -> None:
    for name in list_files():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    pin(folder)
    (folder / "README.md").write_text((ROOT / ".ci/template/README.md").read_text())
    rewrite(folder)


def list_files() -> list[str]:
    """Return the tracked files that belong to the platform, and the decisions that they cite."""
    process = subprocess.run(
        ["git", "ls-files"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = []
    decisions = []
    for name in process.stdout.splitlines():
        if not (ROOT / name).is_file():
            continue
        if name.startswith("infra/decisions/"):
            decisions.append(name)
        if not any(fnmatch.fnmatch(name, pattern) for pattern in LEFT_OUT):
            names.append(name)
    return names + find_citations(names, decisions)


def find_citations(names: list[str], decisions: list[str]) -> list[str]:
    """Return the decisions that these files cite, and those that the decisions cite."""
    cited: list[str] = []
    while names:
        numbers: set[str] = set()
        for name in names:
            numbers.update(CITATION.findall((ROOT / name).read_text(errors="ignore")))
        names = []
        for decision in decisions:
            if Path(decision).name[:4] in numbers and decision not in cited:
                names.append(decision)
        cited += names
    return cited


def pin(folder: Path) -> None:
    """Add the wheel to vendor/, and its hash to the lock."""
    vendor = folder / "vendor"
    command = [sys.executable, ROOT / ".ci/wheel.py", "--out-dir", vendor]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for path in vendor.iterdir():
        if path.suffix != ".whl":
            path.unlink()
    (wheel,) = vendor.glob("holdfast_gke-*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = folder / "requirements" / "dev.txt"
    lock.write_text(f"{lock.read_text().rstrip()}\n./vendor/{wheel.name} --hash=sha256:{digest}\n")


# These lines name the library's sources or tests, in files that both repositories have.
REWRITTEN = {
    "pyproject.toml": {
        'src = [".", "workloads/library"]': 'src = ["."]',
        'extraPaths = ["workloads/library"]\n': "",
        'exclude = ["workloads/library/tests", "**/__pycache__"]\n': (
            'exclude = ["**/__pycache__"]\n'
        ),
        'testpaths = ["tests", "workloads/library/tests"]': 'testpaths = ["tests"]',
    },
    "Makefile": {
        "check: setup ## Format, lint, types, workflow files, style, wording, spelling\n": (
            "check: setup ## Format, lint, types, workflow files\n"
        ),
        "\t@$(PY) -m tests.check_words\n\t@$(PY) -m tests.check_style\n\t@typos\n": "",
    },
    ".gitignore": {"/vendor/\n": ""},
    "monitoring/README.md": {"[library](../workloads/library/README.md)": "library"},
    "tests/README.md": {
        "; those of the library are in `workloads/library/tests`": "",
        "[SLOWEST.md](SLOWEST.md) lists the slowest tests, "
        "[NOT_PROVEN.md](NOT_PROVEN.md) what no test shows. ": "",
    },
}


def rewrite(folder: Path) -> None:
    for name, changes in REWRITTEN.items():
        path = folder / name
        text = path.read_text()
        for old, new in changes.items():
            if old not in text:
                refuse(
                    name,
                    f"no {old.strip()}",
                    "the lines that a template changes",
                    "follow it in .ci/template.py",
                )
            text = text.replace(old, new)
        path.write_text(text)


def add_environment(folder: Path, name: str) -> None:
    """Add an environment by the commands that a team would use, with the packages of this
    repository.
    """
    for command in (["-m", "infra", "new", name], ["-m", "workloads", "render", name]):
        process = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            print(process.stderr, file=sys.stderr, end="")
            sys.exit(process.returncode)


if __name__ == "__main__":
    main()
