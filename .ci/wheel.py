"""`make wheel`: the library of all that runs in pods, as wheel and sdist."""

import argparse
import subprocess
from pathlib import Path

from bootstrap import ROOT, find_uv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out-dir", type=Path, default=ROOT / "out" / "wheel")
    out: Path = parser.parse_args().out_dir
    subprocess.run([find_uv(), "build", "--quiet", "--out-dir", out, ROOT / "workloads" / "library"], check=True)
    print(*sorted(str(path) for path in out.glob("holdfast-*")), sep="\n")


if __name__ == "__main__":
    main()
