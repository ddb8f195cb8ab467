#!/usr/bin/env python3
"""A project in a file, for the commands of a proof: `deploy` makes things, `destroy` removes them.

`faults.json` in the folder says what fails: step -> how. Every call is written down.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
THINGS = ("network", "cluster", "pool")


def main(words: list[str]) -> int:
    with (FOLDER / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    faults = json.loads((FOLDER / "faults.json").read_text())
    fault = next((how for step, how in faults.items() if all(part in words for part in step.split())), "")
    made = FOLDER / "made"
    if "deploy" in words:
        for thing in THINGS:
            if fault == thing:
                print(f"Error: googleapi: Error 403: Quota exceeded while making the {thing}", file=sys.stderr)
                return 1
            if fault == "hangs" and thing == "pool":
                return _until_interrupted()
            with made.open("a") as file:
                file.write(thing + "\n")
        return 0
    if fault == "hangs":
        return _until_interrupted()
    if fault:
        print(fault, file=sys.stderr)
        return 1
    if "destroy" in words:
        made.unlink(missing_ok=True)
    if "list" in words:
        print("[]")
    return 0


def _until_interrupted() -> int:
    """As Terraform: an interrupt ends it in order."""
    signal.signal(signal.SIGINT, lambda *_: sys.exit(1))
    # Whole at any moment: whoever waits for the file reads it at once.
    (FOLDER / "hanging.new").write_text(str(os.getpid()))
    (FOLDER / "hanging.new").rename(FOLDER / "hanging")
    while True:
        time.sleep(60)


sys.exit(main(sys.argv[1:]))
