"""`holdfast_lint`, as it is installed in another repository: the command puts the linter's rooms on its own path."""

import sys
from pathlib import Path


def main() -> None:
    # Nobody else gets rooms named `infra` and `workloads`: infra/decisions/0066.
    sys.path.insert(0, str(Path(__file__).parent / "rooms"))
    from workloads.manifests.cli import hook

    hook()
