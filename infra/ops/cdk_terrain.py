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

SEAM = "infra/cdk.py"
FILES = (SEAM, "pyproject.toml", "requirements/dev.txt", "requirements/infra.txt")
NODE_TOOLS = "requirements/node"
NEW_NODE_TOOLS = "requirements/cdktn"
NEW_LOCK = "requirements/cdktn.txt"
CHANGES = {
    r"^import cdktf$": "import cdktn as cdktf",
    r'"cdktf_cdktf_provider_google"': '"cdktn_provider_google"',
    # The newer bindings know these arguments, and check them.
    r"^NEWER_THAN_BINDINGS = \{[^}]*\}$": "NEWER_THAN_BINDINGS = {}",
}
PACKAGES = {
    "cdktf": "cdktn",
    "cdktf-cdktf-provider-google": "cdktn-provider-google",
    # CDK Terrain accepts no newer release.
    "constructs": "constructs",
}
# A package of a lock: its version, and the lines of its hashes.
ENTRY = r"^{}==(\S+) \\\n(?: +--hash=.*\n)+"


def move(root: Path = ROOT) -> None:
    """Change the files below `root`. Raises InputError if they have been moved already."""
    if not re.search("^import cdktf$", (root / SEAM).read_text(), re.M):
        raise InputError(
            SEAM,
            got="no line `import cdktf`",
            allowed="a repository that uses CDKTF",
            fix="nothing, if it has moved already",
        )
    changes = dict(CHANGES)
    new_lock = (root / NEW_LOCK).read_text()
    for old, new in PACKAGES.items():
        for entry in re.finditer(ENTRY.format(new), new_lock, re.M):
            changes[ENTRY.format(old)] = entry[0]
            changes[f'"{old}==[^"]+"'] = f'"{new}=={entry[1]}"'
    for name in FILES:
        text = (root / name).read_text()
        for pattern, replacement in changes.items():
            text = re.sub(pattern, replacement, text, flags=re.M)
        (root / name).write_text(text)
    shutil.copytree(root / NEW_NODE_TOOLS, root / NODE_TOOLS, dirs_exist_ok=True)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    run_cli(move)
