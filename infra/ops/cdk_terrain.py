"""`python -m infra.ops.cdk_terrain` moves this repository from CDKTF to CDK Terrain.

It changes the names in infra/cdk.py and the pins of packages, and nothing else: state, stacks and
addresses stay (infra/decisions/0197). `make setup cdktf-cli` then installs what is pinned.
"""

import argparse
import re
import shutil
from pathlib import Path

from holdfast.support.errors import InputError, run_cli
from infra.ops.synth import ROOT

SEAM = Path("infra/cdk.py")
NAMES = {
    r"^import cdktf$": "import cdktn as cdktf",
    r'^BINDINGS = "cdktf_cdktf_provider_google"$': 'BINDINGS = "cdktn_provider_google"',
    # The newer bindings know these arguments, and check them.
    r"^NEWER_THAN_BINDINGS = \{$.*?^\}$": "NEWER_THAN_BINDINGS = {}",
}
PACKAGES = {
    "cdktf": "cdktn",
    "cdktf-cdktf-provider-google": "cdktn-provider-google",
    # CDK Terrain accepts no newer release.
    "constructs": "constructs",
}
# A package of a lock: its name, its version, and the lines of its hashes.
ENTRY = r"^({})==(\S+) \\\n(?: +--hash=.*\n)+"
GROUPS = Path("pyproject.toml")
NODE_TOOLS = Path("requirements/node")
NEW_NODE_TOOLS = Path("requirements/cdktn")
NEW_LOCK = Path("requirements/cdktn.txt")
LOCKS = (Path("requirements/dev.txt"), Path("requirements/infra.txt"))


def move(root: Path = ROOT) -> list[Path]:
    """Write the changed files below `root`, and return them. Raises InputError, and writes nothing,
    if the repository has moved already.
    """
    changed = {SEAM: move_names((root / SEAM).read_text())}
    new_lock = (root / NEW_LOCK).read_text()
    for path in (GROUPS, *LOCKS):
        changed[path] = move_pins((root / path).read_text(), new_lock)
    for path, text in changed.items():
        (root / path).write_text(text)
    shutil.copytree(root / NEW_NODE_TOOLS, root / NODE_TOOLS, dirs_exist_ok=True)
    return [*changed, NODE_TOOLS]


def move_names(text: str) -> str:
    """Return infra/cdk.py with the names of CDK Terrain."""
    for pattern, replacement in NAMES.items():
        text, count = re.subn(pattern, replacement, text, flags=re.M | re.S)
        if count != 1:
            raise InputError(
                str(SEAM),
                got=f"{count} lines like {pattern}",
                allowed="1",
                fix="nothing if it has moved already; otherwise take the file of the release",
            )
    return text


def move_pins(text: str, new_lock: str) -> str:
    """Return a lock file, or the groups of pyproject.toml, with the packages of CDK Terrain."""
    entries = {entry[1]: entry for entry in re.finditer(ENTRY.format(r"[\w-]+"), new_lock, re.M)}
    for old, new in PACKAGES.items():
        entry = entries[new]
        text = re.sub(ENTRY.format(old), entry[0], text, flags=re.M)
        text = re.sub(rf'"{old}==[^"]+"', f'"{new}=={entry[2]}"', text)
    return text


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    run_cli(lambda: print(*move(), sep="\n"))
