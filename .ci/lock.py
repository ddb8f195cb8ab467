"""`make lock`: requirements/<group>.txt, all resolved together through dev; --upgrade takes the
newest that is allowed.

Names, versions, hashes; no addresses.
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
    upgrade = ["--upgrade"] if parser.parse_args().upgrade else []
    command = [
        find_uv(),
        "pip",
        "compile",
        *COMMON,
        *upgrade,
    ]
    sources: dict[str, list[str]] = {}
    for group in ("dev", "infra", "train", "serve", "monitor"):
        sources[group] = [
            "--group",
            group,
            *([] if group == "dev" else ["-c", "requirements/dev.txt"]),
        ]
    # Tools whose pins contradict ours live in environments of their own.
    for source in sorted((ROOT / "requirements").glob("*.in")):
        sources[source.stem] = [f"requirements/{source.name}"]
    for name, words in sources.items():
        subprocess.run(
            [
                *command,
                *words,
                "-o",
                f"requirements/{name}.txt",
            ],
            cwd=ROOT,
            check=True,
        )


if __name__ == "__main__":
    main()
