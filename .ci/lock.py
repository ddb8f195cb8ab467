"""`make lock`: requirements/<group>.txt, all resolved together through dev; --upgrade takes the newest that is allowed.

Names, versions, hashes; no addresses.
"""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from bootstrap import ROOT, find_uv

COMMON = ("--quiet", "--universal", "--generate-hashes", "--no-header", "--no-annotate", "--python-version", "3.11")


def main() -> None:
    uv = find_uv()
    common = [*COMMON, *(["--upgrade"] if "--upgrade" in sys.argv[1:] else [])]
    for group in ("dev", "infra", "train", "serve", "monitor"):
        constraint = () if group == "dev" else ("-c", "requirements/dev.txt")
        subprocess.run(
            [uv, "pip", "compile", *common, "--group", group, *constraint, "-o", f"requirements/{group}.txt"],
            cwd=ROOT,
            check=True,
        )
    # Tools whose pins contradict ours live in environments of their own.
    for source in sorted((ROOT / "requirements").glob("*.in")):
        command = [
            uv,
            "pip",
            "compile",
            *common,
            f"requirements/{source.name}",
            "-o",
            f"requirements/{source.stem}.txt",
        ]
        subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
