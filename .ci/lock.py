"""`make lock` writes requirements/<group>.txt, all resolved together through dev; --upgrade takes
the newest allowed versions.

Locks have names, versions and hashes, and no addresses.
"""

import subprocess
import sys

from bootstrap import ROOT, find_uv

COMMON = (
    "--quiet",
    "--universal",
    "--generate-hashes",
    "--no-header",
    "--no-annotate",
    "--python-version",
    "3.11",
)


def main() -> None:
    command = [find_uv(), "pip", "compile", *COMMON]
    if "--upgrade" in sys.argv[1:]:
        command.append("--upgrade")
    sources = {"dev": ["--group", "dev"]}
    for group in ("infra", "train", "serve", "monitor"):
        sources[group] = ["--group", group, "-c", "requirements/dev.txt"]
    # Tools whose pins contradict those of the groups have separate environments.
    for source in sorted((ROOT / "requirements").glob("*.in")):
        sources[source.stem] = [f"requirements/{source.name}"]
    for name, options in sources.items():
        lock = f"requirements/{name}.txt"
        subprocess.run([*command, *options, "-o", lock], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
