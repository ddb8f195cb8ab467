"""`make lock` writes requirements/<group>.txt, all resolved together through dev; --upgrade takes
the newest allowed versions.

Locks have names, versions and hashes, and no addresses.
"""

import argparse
import subprocess

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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--upgrade", action="store_true", help="take the newest versions that pyproject.toml allows"
    )
    command = [find_uv(), "pip", "compile", *COMMON]
    if parser.parse_args().upgrade:
        command.append("--upgrade")
    sources = {"dev": ["--group", "dev"]}
    for group in ("infra", "train", "serve", "monitor"):
        sources[group] = ["--group", group, "-c", "requirements/dev.txt"]
    # Tools whose pins contradict those of the groups have separate environments.
    for source in sorted((ROOT / "requirements").glob("*.in")):
        sources[source.stem] = [f"requirements/{source.name}"]
        # Replaces a requirement of a package that the index cannot meet.
        if source.with_suffix(".override").exists():
            sources[source.stem] += ["--override", f"requirements/{source.stem}.override"]
    sources["oldest"] += ["--resolution", "lowest-direct"]
    for name, options in sources.items():
        lock = f"requirements/{name}.txt"
        subprocess.run([*command, *options, "-o", lock], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
