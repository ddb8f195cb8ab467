"""Starts a program with the parameters of one point of a sweep, in its pod.

The text of this module is the command of the job's own image, so it takes nothing but the standard
library of Python 3.8 and later. The program replaces it, and gets the signals itself.
"""

import json
import os
import sys
from pathlib import Path


def main(table: str, *command: str) -> None:
    points = json.loads(Path(table).read_text(encoding="utf-8"))
    point = points[int(os.environ["HOLDFAST_POINT"])]
    words = []
    for word in command:
        for name, value in point.items():
            word = word.replace(f"$({name})", value)
        words.append(word)
    os.environ.update(point)
    number = os.environ["HOLDFAST_POINT"]
    text = " ".join(f"{name}={value}" for name, value in point.items())
    print(f"holdfast: point {number} of {len(points)}: {text}", flush=True)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        sys.exit(f"holdfast: {words[0]} cannot be started: {error.strerror}")
