"""Records the digest of the base image's tag: `python -m workloads.images.base [IMAGE:TAG]`.

Review the new digest like any other update.
"""

import json
import sys

from holdfast.support.errors import run_cli
from holdfast.support.progress import working
from workloads.images import copying, pins


def main() -> None:
    if len(sys.argv) > 1:
        image = sys.argv[1]
    else:
        image = json.loads(pins.BASE.read_text(encoding="utf-8"))["image"]
    with working(f"ask for {image}"):
        digest = copying.resolve(image, plain_http=False)
    pins.record_base(image, digest)
    print(f"{image}@{digest}")
    print("Next: commit workloads/images/base.json, then make images ENV=NAME", file=sys.stderr)


if __name__ == "__main__":
    run_cli(main)
