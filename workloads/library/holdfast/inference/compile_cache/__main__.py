"""`python -m holdfast.inference.compile_cache`: the two containers around an engine that compiles.

`fetch` fills the folder of its compilers and ends, with 0 whatever happens. `keep` stores what the
engine has compiled once it is ready, and runs until SIGTERM.
"""

import argparse
from pathlib import Path

from holdfast.inference.compile_cache.restoring import fetch
from holdfast.inference.compile_cache.storing import Keeper
from holdfast.inference.proxy.sidecar import request
from holdfast.runtime import logs
from holdfast.runtime.shutdown import leave_now, of_process


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.inference.compile_cache", description=__doc__
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    fetching = verbs.add_parser("fetch", help="fill the folder from a bucket")
    keeping = verbs.add_parser("keep", help="store the folder in a bucket")
    for verb in (fetching, keeping):
        verb.add_argument("--url", required=True, help="folder of the service in a bucket")
        verb.add_argument("--key", required=True, help="name of the archive for this engine")
        verb.add_argument("--folder", required=True, type=Path)
    fetching.add_argument(
        "--within",
        type=float,
        default=120.0,
        help="most seconds to take",
    )
    keeping.add_argument("--health", required=True, help="URL that answers 200 when it is ready")
    keeping.add_argument(
        "--settle",
        type=float,
        default=10.0,
        help="seconds in which no file may change before they are stored",
    )
    arguments = parser.parse_args()
    logs.use_json()
    if arguments.verb == "fetch":
        fetch(
            arguments.url,
            arguments.key,
            arguments.folder,
            arguments.within,
        )
        leave_now(0)  # a request may still be under way
    _keep(arguments)


def _keep(arguments: argparse.Namespace) -> None:
    shutdown = of_process()
    keeper = Keeper(
        url=arguments.url,
        key=arguments.key,
        folder=arguments.folder,
        settle_s=arguments.settle,
        is_ready=lambda: request("GET", arguments.health)[0] == 200,
        wait=shutdown.wait,
    )
    keeper.run()
    shutdown.wait()  # the pod is ready only while all of its containers run


if __name__ == "__main__":
    main()
