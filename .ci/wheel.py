"""`make wheel`: the library of all that runs in pods, as wheel and sdist."""

import subprocess

from bootstrap import ROOT, find_uv


def main() -> None:
    out = ROOT / "out" / "wheel"
    subprocess.run([find_uv(), "build", "--quiet", "--out-dir", out, ROOT / "workloads" / "library"], check=True)
    print(*sorted(str(path.relative_to(ROOT)) for path in out.glob("holdfast-*")), sep="\n")


if __name__ == "__main__":
    main()
