"""Records the digest of the base image's tag: `python -m workloads.images.base [IMAGE:TAG]`.

Review the new digest like any other update.
"""

import argparse
import json
import sys

from holdfast.support.errors import run_cli
from holdfast.support.progress import working
from workloads.images import copying, pins


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image", nargs="?", help="IMAGE:TAG; default: the one that is recorded")
    image = parser.parse_args().image
    if not image:
        image = json.loads(pins.BASE.read_text(encoding="utf-8"))["image"]
    with working(f"ask for {image}"):
        digest = copying.resolve(image, plain_http=False)
    pins.record_base(image, digest)
    print(f"{image}@{digest}")
    print("Next: commit workloads/images/base.json, then make images ENV=NAME", file=sys.stderr)


if __name__ == "__main__":
    run_cli(main)
