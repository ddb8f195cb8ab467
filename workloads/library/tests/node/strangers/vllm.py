"""The program `vllm` of an image without a GPU: the words of `vllm serve`, for the small engine.

What needs weights is left out: the model and how it is loaded.
"""

import os
import sys

TOKENS_PER_S = "10"


def main() -> None:
    verb, _, *words = sys.argv[1:]
    assert verb == "serve", sys.argv
    place = words.index("--load-format")
    del words[place : place + 2]
    command = ["python", "-m", "holdfast.inference.small_engine", *words]
    os.execvp(command[0], [*command, "--tokens-per-second", TOKENS_PER_S])


main()
